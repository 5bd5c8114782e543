"""The program: its interpreter, its memory, and how it ends."""

import asyncio
import gc
import sys
import weakref
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import structlog
import typer
from typer.testing import CliRunner

from cli.common import interpreter, memory
from cli.common.colour import has_colours, painted
from cli.common.memory import GarbageCollector
from cli.main import app as foldmq
from cli.program.help_pages import Program
from cli.serve.banner import Facts, announce
from cli.settings.settings import load_settings
from eventstore.reading.progress import few_collections


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


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ("'--enable-optimizations' '--with-lto' '--prefix=/usr/local'", True),
        ("'--prefix=/usr' 'CFLAGS=-g -O2'", True),
        ("'--prefix=/usr/local' '--enable-shared'", False),
        ("'--prefix=/opt/python' 'CFLAGS=--enable-optimizations'", False),
        (None, None),
        ("", None),
    ],
)
def test_how_an_interpreter_was_configured(arguments: str | None, expected: bool | None) -> None:
    assert interpreter.optimised(arguments) is expected


@pytest.mark.parametrize(("optimised", "lines"), [(False, 1), (True, 0), (None, 0)])
def test_serve_reports_a_python_that_is_not_optimised(
    monkeypatch: pytest.MonkeyPatch, optimised: bool | None, lines: int
) -> None:
    monkeypatch.setattr(interpreter, "own", lambda: optimised)
    facts = Facts([], None, None, "", 0, "/d", "n", "x", "y", durable=True)
    with structlog.testing.capture_logs() as logged:
        announce(load_settings({}, {}), facts)
    said = [line for line in logged if line["event"] == interpreter.NOT_OPTIMISED]
    assert [line["python"] for line in said] == [sys.executable] * lines


@pytest.mark.parametrize(("compiled", "lines"), [(False, 1), (True, 0)])
def test_serve_reports_modules_that_are_not_compiled(
    monkeypatch: pytest.MonkeyPatch, compiled: bool, lines: int
) -> None:
    monkeypatch.setattr(interpreter, "compiled", lambda: compiled)
    facts = Facts([], None, None, "", 0, "/d", "n", "x", "y", durable=True)
    with structlog.testing.capture_logs() as logged:
        announce(load_settings({}, {}), facts)
    assert [line["event"] for line in logged].count(interpreter.NOT_COMPILED) == lines


class Cycle:
    def __init__(self) -> None:
        self.own = self


def test_garbage_is_collected_while_the_number_of_objects_stays_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(memory, "_LATEST", 0.01)
    turns = 0

    async def scenario() -> None:
        nonlocal turns
        task = asyncio.create_task(GarbageCollector(lambda: turns).collect_young())
        await asyncio.sleep(0.05)
        kept = weakref.ref(Cycle())
        await asyncio.sleep(0.1)
        assert kept() is not None  # there was no turn: nothing was done
        turns = 1
        for _ in range(500):
            await asyncio.sleep(0.01)
            if kept() is None:
                break
        assert kept() is None
        task.cancel()

    gc.disable()  # else Python begins collections of its own
    try:
        asyncio.run(scenario())
    finally:
        gc.enable()


def test_collections_that_take_long_come_sooner() -> None:
    assert memory._next_pause(0.2, 0.040) == pytest.approx(0.02)
    assert memory._next_pause(0.2, 0.008) == pytest.approx(0.1)
    assert memory._next_pause(0.02, 1.0) == memory._SOONEST
    assert memory._next_pause(0.1, 0.003) == 0.1
    assert memory._next_pause(0.1, 0.001) == pytest.approx(0.15)
    assert memory._next_pause(0.2, 0.0) == memory._LATEST


@pytest.mark.parametrize("many", [False, True])
def test_an_idle_broker_collects_all_or_freezes_the_rest(
    monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    done: list[str] = []
    monkeypatch.setattr(gc, "collect", lambda: done.append("collect"))
    monkeypatch.setattr(gc, "freeze", lambda: done.append("freeze"))
    monkeypatch.setattr(memory, "trim", lambda: done.append("trim"))
    collector = GarbageCollector(lambda: 7)
    collector._spent = 1.0 if many else 0.0
    sleep = asyncio.sleep

    async def scenario() -> None:
        monkeypatch.setattr(asyncio, "sleep", lambda _: sleep(0))
        task = asyncio.create_task(collector.collect_when_idle())
        while done.count("trim") < 2:
            await sleep(0.001)
        task.cancel()

    asyncio.run(scenario())
    assert done[:3] == ["freeze" if many else "collect", "trim", "collect"]


def test_garbage_is_collected_seldom_and_as_before_afterwards() -> None:
    before = gc.get_threshold()
    if before[0] > 10_000:  # by a test before
        gc.set_threshold(700, *before[1:])
        before = gc.get_threshold()
    with few_collections():
        assert gc.isenabled()
        assert gc.get_threshold()[0] > before[0] > 0
    assert gc.get_threshold() == before


def test_garbage_is_collected_as_before_after_a_failure() -> None:
    before = gc.get_threshold()
    with pytest.raises(ValueError, match="x"), few_collections():
        raise ValueError("x")
    assert gc.get_threshold() == before
