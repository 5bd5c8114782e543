"""Writes conformance.md and conformance-5.md in docs/contribute: statements and their tests.

One page has the normative statements of MQTT 3.1.1, the other one those of MQTT 5.0.

The statements come from normative_statements.toml and normative_statements_mqtt5.toml beside this
file, the tests from the `@pytest.mark.mqtt("MQTT-x.y.z-n", ...)` and `@pytest.mark.mqtt5(...)`
marks in tests/, found without running them.

    python tools/conformance_table.py          writes the pages
    python tools/conformance_table.py --check  exits 1 if a page is not up to date
"""

from __future__ import annotations

import ast
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
SHOWN = 4
"""Tests named per statement; the rest is counted."""

INTRODUCTION = """\
# Conformance with {name}

Written by `tools/conformance_table.py` from the marks in `tests/`; do not edit.

Each row is a normative statement of the OASIS standard, paraphrased. *Binds* names the side that
must fulfil it. Statements that bind clients are tested where the server must detect a violation.
Tests in `tests/conformance*` and `tests/e2e` connect to a running broker over real sockets; the
others call a part of it.

"""


@dataclass(frozen=True, slots=True)
class Standard:
    """A version of MQTT: the file of its statements, the marks of its tests, and its page."""

    name: str
    mark: str
    source: str
    page: Path


MQTT_3_1_1 = Standard(
    "MQTT 3.1.1",
    "mqtt",
    "normative_statements.toml",
    ROOT / "docs" / "contribute" / "conformance.md",
)
MQTT_5 = Standard(
    "MQTT 5.0",
    "mqtt5",
    "normative_statements_mqtt5.toml",
    ROOT / "docs" / "contribute" / "conformance-5.md",
)
STANDARDS = (MQTT_3_1_1, MQTT_5)


@dataclass(frozen=True, slots=True)
class Statement:
    """A row of the table; `reason` explains why there is no test, if there is none."""

    number: str
    binds: str
    summary: str
    reason: str = ""

    @property
    def binds_server(self) -> bool:
        """Whether the statement binds a server."""
        return self.binds in {"server", "both"}


def statements(standard: Standard) -> list[Statement]:
    """All normative statements, in the order of the standard."""
    data = tomllib.loads((ROOT / "tools" / standard.source).read_text("utf-8"))
    return [Statement(**entry) for entry in data["statement"]]


def proofs(standard: Standard) -> dict[str, list[str]]:
    """Return the tests of each statement by its number, as `path::function`, sorted."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        text = path.read_text("utf-8")
        if f"pytest.mark.{standard.mark}(" not in text:
            continue
        for function, number in _marks(ast.parse(text), standard.mark):
            found.setdefault(number, set()).add(f"{name}::{function}")
    return {number: sorted(tests) for number, tests in found.items()}


def _marks(tree: ast.Module, mark: str) -> Iterator[tuple[str, str]]:
    """Yield pairs of a test function and a statement that it, or its class, is marked with."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            of_class = list(_numbers(node.decorator_list, mark))
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    numbers = [*of_class, *_numbers(inner.decorator_list, mark)]
                    yield from ((f"{node.name}::{inner.name}", number) for number in numbers)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((node.name, number) for number in _numbers(node.decorator_list, mark))


def _numbers(decorators: list[ast.expr], mark: str) -> Iterator[str]:
    """Yield the arguments of the marks of that name among the decorators of a test."""
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == f"pytest.mark.{mark}":
            yield from (str(ast.literal_eval(argument)) for argument in decorator.args)


def page(standard: Standard) -> str:
    """Return the text of a standard's page."""
    proven = proofs(standard)
    rows = ["| Statement | Binds | In short | Proven by |", "|---|---|---|---|"]
    rows += [
        f"| {one.number} | {one.binds} | {one.summary} | {_evidence(one, proven)} |"
        for one in statements(standard)
    ]
    binding = [one for one in statements(standard) if one.binds_server]
    tested = sum(one.number in proven for one in binding)
    count = f"Of {len(binding)} statements that bind a server, {tested} are proven by tests.\n\n"
    return INTRODUCTION.format(name=standard.name) + count + "\n".join(rows) + "\n"


def _evidence(statement: Statement, proven: dict[str, list[str]]) -> str:
    tests = proven.get(statement.number, [])
    if not tests:
        return statement.reason or ("client only" if not statement.binds_server else "**nothing**")
    shown = []
    for test in tests[:SHOWN]:
        path, function = test.split("::", 1)
        shown.append(f"[{function}](../../{path})")
    if len(tests) > SHOWN:
        shown.append(f"and {len(tests) - SHOWN} more")
    return ", ".join(shown)


def main(arguments: list[str]) -> int:
    """Write or check the pages; the exit code is 1 if one is not up to date."""
    stale = False
    for standard in STANDARDS:
        text = page(standard)
        if "--check" not in arguments:
            standard.page.parent.mkdir(exist_ok=True)
            standard.page.write_text(text, "utf-8")
        elif not standard.page.exists() or standard.page.read_text("utf-8") != text:
            sys.stderr.write(
                f"docs/contribute/{standard.page.name}: run python tools/conformance_table.py\n"
            )
            stale = True
    return int(stale)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
