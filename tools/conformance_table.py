"""Writes docs/conformance.md: every normative statement of MQTT 3.1.1 and the tests that prove it.

The statements come from normative_statements.toml beside this file, the tests from the
`@pytest.mark.mqtt("MQTT-x.y.z-n", ...)` marks in tests/, found without running them.

    python tools/conformance_table.py          writes the page
    python tools/conformance_table.py --check  exits 1 if the page is not up to date
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
PAGE = ROOT / "docs" / "conformance.md"
SHOWN = 4
"""Tests named per statement; the rest is counted."""

INTRODUCTION = """\
# Conformance with MQTT 3.1.1

Written by `tools/conformance_table.py` from the marks in `tests/`; do not edit.

Each row is a normative statement of the OASIS standard, paraphrased. *Binds* names the side that
must fulfil it. Statements that bind clients are tested where the server must detect a violation.
The tests connect to a running broker over real sockets.

"""


@dataclass(frozen=True, slots=True)
class Statement:
    """A row of the table; `reason` says why there is no test, where there is none."""

    number: str
    binds: str
    summary: str
    reason: str = ""

    @property
    def binds_server(self) -> bool:
        """Whether a server has to keep it."""
        return self.binds in {"server", "both"}


def statements() -> list[Statement]:
    """All normative statements, in the order of the standard."""
    data = tomllib.loads((ROOT / "tools" / "normative_statements.toml").read_text("utf-8"))
    return [Statement(**entry) for entry in data["statement"]]


def proofs() -> dict[str, list[str]]:
    """Statement number to the tests marked with it, as `path::function`, sorted."""
    found: dict[str, set[str]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        name = path.relative_to(ROOT).as_posix()
        for function, number in _marks(ast.parse(path.read_text("utf-8"))):
            found.setdefault(number, set()).add(f"{name}::{function}")
    return {number: sorted(tests) for number, tests in found.items()}


def _marks(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Pairs of a test function and a statement it is marked with, by itself or by its class."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            of_class = list(_numbers(node.decorator_list))
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef | ast.AsyncFunctionDef):
                    numbers = [*of_class, *_numbers(inner.decorator_list)]
                    yield from ((f"{node.name}::{inner.name}", number) for number in numbers)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from ((node.name, number) for number in _numbers(node.decorator_list))


def _numbers(decorators: list[ast.expr]) -> Iterator[str]:
    """Yield the arguments of the `mqtt` marks among the decorators of a test."""
    for decorator in decorators:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.mqtt":
            yield from (str(ast.literal_eval(argument)) for argument in decorator.args)


def page() -> str:
    """Return the text of docs/conformance.md."""
    proven = proofs()
    rows = ["| Statement | Binds | In short | Proven by |", "|---|---|---|---|"]
    rows += [
        f"| {one.number} | {one.binds} | {one.summary} | {_evidence(one, proven)} |"
        for one in statements()
    ]
    binding = [one for one in statements() if one.binds_server]
    tested = sum(one.number in proven for one in binding)
    count = f"Of {len(binding)} statements that bind a server, {tested} are proven by tests.\n\n"
    return INTRODUCTION + count + "\n".join(rows) + "\n"


def _evidence(statement: Statement, proven: dict[str, list[str]]) -> str:
    tests = proven.get(statement.number, [])
    if not tests:
        return statement.reason or ("client only" if not statement.binds_server else "**nothing**")
    shown = []
    for test in tests[:SHOWN]:
        path, function = test.split("::", 1)
        shown.append(f"[{function}](../{path})")
    if len(tests) > SHOWN:
        shown.append(f"and {len(tests) - SHOWN} more")
    return ", ".join(shown)


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code says whether it is up to date."""
    text = page()
    if "--check" in arguments:
        current = PAGE.read_text("utf-8") if PAGE.exists() else ""
        if current != text:
            sys.stderr.write("docs/conformance.md: run python tools/conformance_table.py\n")
            return 1
        return 0
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
