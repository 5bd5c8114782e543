"""Imports point one way: cli -> cluster -> actors, spark -> projections -> eventstore -> protocol.

Pure packages stay pure: ``protocol`` is sans-IO, ``projections`` use neither clock nor network.
A name is imported from the module that defines it: an ``__init__`` holds a docstring alone.
Packages keep to their budgets of lines, and their imports form no cycle, those for types included.
"""

import ast
import functools
import subprocess
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / "tests").rglob("*.py"))
ORDER = ["protocol", "eventstore", "projections", "outbox", "spark", "actors", "cluster", "cli"]

NETWORK = {"asyncio", "nats", "selectors", "socket", "ssl", "uvloop"}
CLOCK_AND_CHANCE = {"datetime", "random", "secrets", "time", "uuid"}
IMPURE = {"os", "pykka", "pyspark", "structlog", "threading"}
FORBIDDEN = {
    "protocol": NETWORK | CLOCK_AND_CHANCE | IMPURE,
    "projections": NETWORK | CLOCK_AND_CHANCE | IMPURE | {"typer"},
    "eventstore": {"pykka", "paho", "pyspark", "typer"},
    "outbox": {"nats", "pykka", "paho", "pyspark", "typer"},
    "spark": {"outbox", "pykka", "paho", "structlog", "typer"},
    "actors": {"nats", "outbox", "paho", "pyspark", "spark", "typer"},
    "cluster": {"nats", "outbox", "paho", "pyspark", "spark", "typer"},
    "cli": {"pykka"},
}
SPARK = {"py4j", "pyarrow", "pyspark", "spark"}
"""Modules that only jobs of Spark may load."""


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Return line and module of every import, also of those inside functions."""
    for node in _contents(source).imports:
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        else:
            yield node.lineno, "." * node.level + (node.module or "")


class Contents(NamedTuple):
    """What these tests look at in a module."""

    imports: list[ast.Import | ast.ImportFrom]
    waits: list[int]
    """The lines that name ``asyncio.wait_for``."""


@functools.cache
def _contents(source: str) -> Contents:
    """Parse a module, once for all tests."""
    tree = ast.parse(source)
    statements = [*_statements(tree.body)]
    waits = ast.walk(tree) if "wait_for" in source else ()
    return Contents(
        [node for node in statements if isinstance(node, ast.Import | ast.ImportFrom)],
        [
            node.lineno
            for node in waits
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "asyncio.wait_for"
        ],
    )


def _statements(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """Return statements with those inside them: imports and classes are part of no expression."""
    for one in body:
        yield one
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            yield from _statements(getattr(one, field, ()))


def violations(package: str, source: str) -> list[str]:
    above = ORDER[ORDER.index(package) + 1 :]
    banned = FORBIDDEN[package] | set(above) | {"tests", "bench"}
    found = []
    for line, module in imported(source):
        if module.startswith("."):
            found.append(f"{line}: relative import {module}")
        elif module.split(".")[0] in banned:
            found.append(f"{line}: {package} imports {module}")
    return found


@pytest.mark.parametrize("package", ORDER)
def test_imports_point_one_way(package: str) -> None:
    modules = sorted((ROOT / package).rglob("*.py"))
    assert modules
    found = [
        f"{module.relative_to(ROOT)}:{problem}"
        for module in modules
        for problem in violations(package, module.read_text("utf-8"))
    ]
    assert not found


def test_spark_is_loaded_for_its_jobs_alone() -> None:
    jobs = ROOT / "cli" / "spark"
    found = [
        f"{module.relative_to(ROOT)}:{line}: imports {name}"
        for module in (ROOT / "cli").rglob("*.py")
        if jobs not in module.parents
        for line, name in imported(module.read_text("utf-8"))
        if name.split(".")[0] in SPARK
    ]
    assert not found


def test_every_package_is_typed() -> None:
    assert [package for package in ORDER if not (ROOT / package / "py.typed").exists()] == []


@pytest.mark.parametrize("package", ORDER)
def test_no_cancellation_is_lost_in_wait_for(package: str) -> None:
    """``wait_for`` of Python 3.11 loses a cancellation that arrives together with the result."""
    lost = [
        f"{module.relative_to(ROOT)}:{line}"
        for module in sorted((ROOT / package).rglob("*.py"))
        for line in _contents(module.read_text("utf-8")).waits
    ]
    assert lost == []


# ----------------------------------------------------------------- packages
GROWTH = 1.05
"""How far a package may exceed its budget before that is a decision: a change of the budget."""
BUDGETS: dict[str, int] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"][
    "foldmq"
]["budgets"]
"""Package -> its lines, as ``wc -l`` counts them."""

Edge = tuple[str, str]


def _package(module: str) -> str:
    return module if module in _packages() else module.rpartition(".")[0]


@functools.cache
def _files() -> dict[str, Path]:
    """Every module and package by its dotted name."""
    found = {}
    for top in ORDER:
        for file in sorted((ROOT / top).rglob("*.py")):
            parts = file.relative_to(ROOT).with_suffix("").parts
            found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = file
    return found


@functools.cache
def _packages() -> frozenset[str]:
    return frozenset(name for name, file in _files().items() if file.name == "__init__.py")


def _targets(source: str, known: Iterable[str]) -> set[str]:
    """Return which of the known modules the source imports, or which packages as such."""
    found = set()
    for node in _contents(source).imports:
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif node.module:
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                found.add(full if full in known else node.module)
    return found & set(known)


@functools.cache
def _imports() -> frozenset[Edge]:
    """Return the imports from one package to another, as pairs of modules."""
    return frozenset(
        (name, target)
        for name, file in _files().items()
        for target in _targets(file.read_text("utf-8"), _files())
        if _package(name) != _package(target)
    )


def _reached(edges: Iterable[Edge]) -> dict[str, set[str]]:
    """Return which packages each package reaches."""
    after = defaultdict(set)
    for name, target in edges:
        after[_package(name)].add(_package(target))
    return {start: _following(after, start) for start in list(after)}


def _following(after: Mapping[str, set[str]], start: str) -> set[str]:
    """Return all that can be reached from a start."""
    seen: set[str] = set()
    left = [start]
    while left:
        more = after.get(left.pop(), set()) - seen
        seen |= more
        left += more
    return seen


def in_cycles(edges: Iterable[Edge]) -> list[Edge]:
    """Return the imports whose packages reach each other."""
    reached = _reached(edges)
    return sorted(
        (name, target)
        for name, target in edges
        if _package(name) in reached.get(_package(target), ())
    )


def _lines() -> Counter[str]:
    """Return how many lines each package has, without the packages inside it."""
    lines: Counter[str] = Counter()
    for name, file in _files().items():
        lines[_package(name)] += file.read_bytes().count(b"\n")
    return lines


def test_packages_keep_to_their_budgets() -> None:
    lines = _lines()
    assert set(lines) == set(BUDGETS)
    assert {name: n for name, n in lines.items() if n > BUDGETS[name] * GROWTH} == {}


def test_packages_form_no_cycle() -> None:
    assert in_cycles(_imports()) == []


def in_module_cycles(package: str, source_of: Mapping[str, str]) -> list[Edge]:
    """Return the imports of modules of a package that lead back to the importing module."""
    inside = [name for name in source_of if name.startswith(f"{package}.")]
    after = {name: _targets(source_of[name], inside) - {name} for name in inside}
    reached = {name: _following(after, name) for name in inside}
    return sorted(
        (name, target) for name in inside for target in after[name] if name in reached[target]
    )


@pytest.mark.parametrize("package", ["actors.session", "actors.connection"])
def test_the_modules_of_a_session_or_connection_form_no_cycle(package: str) -> None:
    """Its parts take its core: each can be read without the others."""
    sources = {name: file.read_text("utf-8") for name, file in _files().items()}
    assert in_module_cycles(package, sources) == []


def test_the_broker_is_imported_where_it_is_put_together() -> None:
    """No other package knows the root: shared objects are in ``actors.session.node_context``."""
    assert {name for name, target in _imports() if target == "actors.broker.broker"} == {
        "cli.serve.service"
    }


BENCH = sorted((ROOT / "bench").rglob("*.py"))


# --------------------------------------------------------------- where names come from


def test_an_init_holds_a_docstring_alone() -> None:
    full = [
        name
        for name in sorted(_packages())
        if len(ast.parse(_files()[name].read_text("utf-8")).body) != 1
    ]
    assert full == []


@functools.cache
def _passed_on(module: str) -> frozenset[str]:
    """Return the names that a module has from the modules of the product that define them."""
    return frozenset(
        alias.asname or alias.name
        for node in _contents(_files()[module].read_text("utf-8")).imports
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in ORDER
        for alias in node.names
    )


def from_elsewhere(source: str) -> list[str]:
    """Return the names that a module imports from one that does not define them."""
    return [
        f"{node.lineno}: {node.module} does not define {alias.name}"
        for node in _contents(source).imports
        if isinstance(node, ast.ImportFrom) and node.module in _files()
        for alias in node.names
        if alias.name in _passed_on(node.module)
    ]


def test_a_name_is_imported_from_the_module_that_defines_it() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{problem}"
        for file in (*_files().values(), *TESTS, *BENCH)
        for problem in from_elsewhere(file.read_text("utf-8"))
    ]
    assert wrong == []


@pytest.mark.system
def test_packages_of_spark_are_lazy() -> None:
    """Spark imports the data source for each plan: numbers and Parquet take long to import."""
    packages = sorted(name for name in _packages() if name.startswith("spark"))
    heavy = ("matplotlib", "numpy", "pyarrow", "pyspark")
    code = (
        f"import sys, {', '.join(packages)}\n"
        "from spark.tables.planning import plan_ranges\n"
        f"print([name for name in {heavy!r} if name in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == "[]"
