"""The commands and settings in the pages exist, with the options and values that they name.

So do the commands that the program suggests.
"""

from __future__ import annotations

import ast
import re
import shlex
import tomllib
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import typer

from cli.logs import next_commands
from cli.main import app
from cli.settings.setting_sources import TABLES
from cli.settings.settings import load_settings
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parent.parent
DOCS = ROOT / "docs"
PAGES = [
    ROOT / "README.md",
    ROOT / "CHANGELOG.md",
    *sorted(DOCS.rglob("*.md")),
]
COMMAND: Any = typer.main.get_command(app)

_FENCE = re.compile(r" *```(\w*)")
_SHELLS = {"", "sh", "bash", "console"}
_START = re.compile(
    r"\s*(?:\$ |# )?(?:[A-Z_]+=\S+ +)*(?:sudo +(?:-u +\S+ +)?)?(?:[\w./-]+/)?foldmq +(?!top  )"
)
"""The beginning of a command; the first line of ``foldmq top`` begins so, too."""
_INLINE = re.compile(r"`foldmq ([^`]+)`")
_FLAG = re.compile(r"(?<![\w-])(--?[A-Za-z][\w-]*)")


def code_lines(text: str) -> list[str]:
    """Return the lines of blocks that may have commands; a line goes on behind a backslash."""
    lines, language, blank = list[str](), None, True
    for line in text.replace("\\\n", " ").splitlines():
        fence = _FENCE.match(line)
        if fence is not None:
            language = fence[1] if language is None else None
        elif language in _SHELLS or (language is None and line.startswith("    ") and blank):
            lines.append(line)
            continue
        blank = not line.strip()
    return lines


def block_commands(text: str) -> list[str]:
    """Return the arguments of each command in a block, without what a shell does with it."""
    commands = []
    for line in code_lines(text):
        started = _START.match(line)
        if started is not None:
            rest = f" {line[started.end() :]} "
            commands.append(re.split(r" +(?:#|\||&|[0-9]?>|;|<)", rest)[0].strip())
    return commands


def parse(arguments: list[str]) -> tuple[Any, list[str]]:
    """Return the command that the arguments name and the rest; raises click's errors."""
    command = COMMAND
    context = command.make_context("foldmq", list(arguments))
    while hasattr(command, "resolve_command"):
        rest = [*context._protected_args, *context.args]
        if not rest:
            return command, []
        _, command, rest = command.resolve_command(context, rest)
        arguments = list(rest)
        context = command.make_context(command.name, list(rest), parent=context)
    return command, arguments


def problem(arguments: str) -> str | None:
    """Return why a command is not accepted, or None."""
    try:
        parse(shlex.split(arguments))
    except FoldmqError as error:
        return str(error)
    except Exception as error:  # noqa: BLE001 -- click's errors, whichever click typer uses
        if type(error).__name__ == "Exit":
            return None
        return f"{type(error).__name__}: {getattr(error, 'message', error)}"
    return None


def flags_of(command: Any) -> set[str]:
    return {flag for each in command.params for flag in (*each.opts, *each.secondary_opts)} | {
        "--help",
        "--help-all",
        "-h",
    }


def inline_problem(span: str) -> str | None:
    """Return what a command in running text names that does not exist, or None."""
    command, flags = COMMAND, set[str]()
    for word in re.split(r"[\s,]+", span):
        if not hasattr(command, "get_command") or word.startswith("-"):
            break
        subcommand = command.get_command(
            command.make_context("foldmq", [], resilient_parsing=True), word
        )
        if subcommand is None:
            return f"no command {word}" if re.fullmatch(r"[a-z][a-z-]+", word) else None
        command = subcommand
    flags = flags_of(command)
    unknown = [flag for flag in _FLAG.findall(re.sub(r"'[^']*'", "", span)) if flag not in flags]
    return f"no option {', '.join(unknown)}" if unknown else None


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_commands_of_a_page_are_accepted(page: Path) -> None:
    text = page.read_text("utf-8")
    wrong = {
        command: reason for command in block_commands(text) if (reason := problem(command))
    } | {span: reason for span in _INLINE.findall(text) if (reason := inline_problem(span))}
    assert wrong == {}


PRODUCT = ["actors", "cli", "cluster", "eventstore", "outbox", "projections", "protocol", "spark"]
_NAMED = re.compile(r"(?<![\w/])foldmq (?P<span>[a-z][^;,()`'\n]*)")
_VERBS = re.compile(
    r"(accepts|always|an?[ds]?|are|bridge|broker|cannot|chooses|does|gave|has|is|itself|keeps|left|logs"
    r"|needs|on|only|reads|record|runs|serves|starts|that|uses|version|with|wrote|as)\b"
)
"""Words behind ``foldmq`` in sentences about the program."""
_SENTENCE = ("lists", "or", "reads", "removes", "shows", "with")
"""Words behind a command in a sentence about it."""


def product_strings(top: str) -> Iterator[tuple[str, str]]:
    """Yield each string of the product with its place; a value in it is an ``X``."""
    for file in sorted((ROOT / top).rglob("*.py")):
        if "foldmq " not in (source := file.read_text("utf-8")):
            continue
        tree = ast.parse(source)
        inner = {
            id(part)
            for node in ast.walk(tree)
            for part in (
                node.values
                if isinstance(node, ast.JoinedStr)
                else [node.value]
                if isinstance(node, ast.Expr)  # a docstring
                else ()
            )
        }
        for node in ast.walk(tree):
            if id(node) in inner:
                continue
            if isinstance(node, ast.JoinedStr):
                parts = [
                    part.value if isinstance(part, ast.Constant) else "X" for part in node.values
                ]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                parts = [node.value]
            else:
                continue
            yield f"{file.relative_to(ROOT)}:{node.lineno}", "".join(map(str, parts))


@pytest.mark.parametrize("top", PRODUCT)
def test_commands_that_the_program_suggests_exist(top: str) -> None:
    wrong = {}
    for place, text in product_strings(top):
        if "completion" in place:
            continue  # scripts of shells
        for named in _NAMED.finditer(text):
            words = named["span"].split()
            if _VERBS.fullmatch(words[0]):
                continue
            span = " ".join(takewhile(lambda word: word not in _SENTENCE, words))
            if (reason := inline_problem(span)) is not None:
                wrong[f"{place} foldmq {span}"] = reason
    assert wrong == {}


def test_completed_commands_have_the_options() -> None:
    for name in next_commands._WITH_FLAGS | next_commands._WITH_SETTINGS:
        group = COMMAND.get_command(
            COMMAND.make_context("foldmq", [], resilient_parsing=True), name
        )
        for command in [group, *getattr(group, "commands", {}).values()]:
            if command is group and not command.params:
                continue
            assert {"--data-dir", "--config", "--nats-url"} <= flags_of(command), command.name
            assert name in next_commands._WITH_SETTINGS or "--node" in flags_of(command)


_TOML = re.compile(r"(?ms)^```toml\n(.*?)^```")
SETTINGS = [
    (page, text)
    for page in PAGES
    for text in _TOML.findall(page.read_text("utf-8"))
    if page.name != "permissions.md" and "recipes" not in page.parts  # have tests of their own
]


@pytest.mark.parametrize(
    ("page", "text"), SETTINGS, ids=[f"{page.stem}-{n}" for n, (page, _) in enumerate(SETTINGS)]
)
def test_settings_of_a_page_are_accepted(page: Path, text: str, tmp_path: Path) -> None:
    """Together, as a file; files that they name need not exist."""
    config = tmp_path / "foldmq.toml"
    config.write_text(text, "utf-8")
    named = set(tomllib.loads(text)) - {*TABLES}
    assert load_settings({}, {}, config).model_fields_set >= named, page
