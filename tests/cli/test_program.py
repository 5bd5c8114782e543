"""The program around the commands: plain values, colours, sections of help pages."""

from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from typer.testing import CliRunner

from cli.common.colour import has_colours, painted
from cli.main import app as foldmq
from cli.program.help_pages import Program


def program(said: list[Any]) -> Program:
    made = Program()
    made.callback()(lambda: None)

    @made.command("all")
    def _all(
        count: Annotated[int, typer.Option("--count", min=1, max=9)] = 3,
        share: Annotated[float, typer.Option("--share", min=0.0)] = 0.5,
        kind: Annotated[Literal["a", "b"], typer.Option("--kind")] = "a",
        names: Annotated[list[str] | None, typer.Option("--name")] = None,
        file: Annotated[Path | None, typer.Option("--file")] = None,
        flag: Annotated[bool, typer.Option("--flag/--no-flag")] = False,
        below: Annotated[str | None, typer.Option("--below", rich_help_panel="Others")] = None,
    ) -> None:
        """Take all."""
        said.append((count, share, kind, names, file, flag, below))

    return made


@pytest.mark.parametrize(
    ("arguments", "values"),
    [
        ([], (3, 0.5, "a", [], None, False, None)),
        (["--count", "9"], (9, 0.5, "a", [], None, False, None)),
        (["--share", "1e-3"], (3, 0.001, "a", [], None, False, None)),
        (["--kind", "b", "--flag"], (3, 0.5, "b", [], None, True, None)),
        (["--name", "x", "--name", ""], (3, 0.5, "a", ["x", ""], None, False, None)),
        (["--file", "/no/such"], (3, 0.5, "a", [], Path("/no/such"), False, None)),
    ],
)
def test_plain_values_are_converted(arguments: list[str], values: tuple[Any, ...]) -> None:
    said: list[Any] = []
    result = CliRunner().invoke(program(said), ["all", *arguments])
    assert result.exit_code == 0, result.output
    (got,) = said
    assert (*got[:3], got[3] or [], *got[4:]) == values


@pytest.mark.parametrize(
    "arguments",
    [
        ["--count", "0"],
        ["--count", "10"],
        ["--count", "1.5"],
        ["--count", "x"],
        ["--share", "-1"],
        ["--kind", "c"],
        ["--file", "a\0b"],
    ],
)
def test_wrong_values_are_refused_by_typer(arguments: list[str]) -> None:
    result = CliRunner().invoke(program([]), ["all", *arguments])
    assert result.exit_code == 2
    assert "Invalid value" in result.output or "null" in str(result.exception or result.output)


def test_help_pages_have_sections() -> None:
    output = CliRunner().invoke(program([]), ["all", "--help"]).output
    assert output.index("Options:") < output.index("--count") < output.index("Others:")
    assert output.index("Others:") < output.index("--below")
    serve = CliRunner().invoke(foldmq, ["serve", "--help-all"]).output
    for title in ("Listeners:", "TLS:", "Limits:", "Log and retention:"):
        assert f"\n{title}\n" in serve
    assert "\nOther:\n" not in serve


def test_an_unknown_command_gets_suggestions() -> None:
    result = CliRunner().invoke(foldmq, ["sesions"])
    assert result.exit_code == 2
    assert "No such command 'sesions'. Did you mean 'sessions'?" in result.output


class _Stream:
    def __init__(self, *, terminal: bool) -> None:
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


@pytest.mark.parametrize(
    ("terminal", "variables", "colours"),
    [
        (True, {"TERM": "xterm"}, True),
        (False, {"TERM": "xterm"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": "1"}, False),
        (True, {"TERM": "xterm", "NO_COLOR": ""}, True),
        (True, {"TERM": "dumb"}, False),
    ],
)
def test_colours_are_for_terminals(
    terminal: bool, variables: dict[str, str], colours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TERM", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    stream: Any = _Stream(terminal=terminal)
    assert has_colours(stream) == colours
    assert painted("a", "red", stream) == ("\x1b[31ma\x1b[0m" if colours else "a")
    assert painted("a", None, stream) == "a"
