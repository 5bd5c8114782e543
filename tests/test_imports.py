"""Imports point one way: cli -> actors, spark -> projections -> eventstore -> protocol.

What is pure stays pure: ``protocol`` is sans-IO, ``projections`` know neither clock nor network.
"""

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
TESTS = sorted((ROOT / "tests").rglob("*.py"))
ORDER = ["protocol", "eventstore", "projections", "spark", "actors", "cli"]

NETWORK = {"asyncio", "nats", "selectors", "socket", "ssl", "uvloop"}
CLOCK_AND_CHANCE = {"datetime", "random", "secrets", "time", "uuid"}
IMPURE = {"os", "pykka", "pyspark", "structlog", "threading"}
FORBIDDEN = {
    "protocol": NETWORK | CLOCK_AND_CHANCE | IMPURE,
    "projections": NETWORK | CLOCK_AND_CHANCE | IMPURE,
    "eventstore": {"pykka", "paho", "pyspark", "typer"},
    "spark": {"pykka", "paho", "structlog", "typer"},
    "actors": {"nats", "paho", "pyspark", "spark", "typer"},
    "cli": {"pykka"},
}
SPARK = {"py4j", "pyarrow", "pyspark", "spark"}
"""What only those may load who asked for a job of Spark."""


def imported(source: str) -> Iterator[tuple[int, str]]:
    """Give line and module of every import, those inside functions too."""
    yield from _imported(source)


@functools.cache
def _imported(source: str) -> list[tuple[int, str]]:
    return list(_imports(ast.parse(source)))


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.lineno, "." * node.level + (node.module or "")


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
    jobs = ROOT / "cli" / "sparkjobs"
    found = [
        f"{module.relative_to(ROOT)}:{line}: imports {name}"
        for module in (ROOT / "cli").rglob("*.py")
        if jobs not in module.parents
        for line, name in imported(module.read_text("utf-8"))
        if name.split(".")[0] in SPARK
    ]
    assert not found


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("protocol", "import asyncio"),
        ("protocol", "from nats.aio.client import Client"),
        ("protocol", "def f():\n    import eventstore.records"),
        ("projections", "from time import monotonic"),
        ("projections", "if True:\n    from actors import auth"),
        ("eventstore", "import projections"),
        ("actors", "from cli.settings import Settings"),
        ("actors", "from . import auth"),
        ("actors", "import spark.log"),
        ("spark", "from actors.attestation import digest"),
        ("projections", "from spark.log import Log"),
    ],
)
def test_a_wrong_import_is_found(package: str, source: str) -> None:
    assert violations(package, source)


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("cli", "from actors import auth\nimport asyncio"),
        ("actors", "import asyncio\nimport pykka\nfrom projections.session import evolve"),
        ("projections", "from eventstore.events import Event"),
        ("spark", "import asyncio\nimport pyspark\nfrom projections.session import evolve"),
        ("cli", "from spark.session import spark_session"),
        ("protocol", "import struct\nfrom protocol.errors import FoldmqError"),
    ],
)
def test_a_right_import_passes(package: str, source: str) -> None:
    assert not violations(package, source)


def test_no_test_module_imports_another() -> None:
    found = [
        f"{module.relative_to(ROOT)}:{line}: imports {name}"
        for module in TESTS
        for line, name in imported(module.read_text("utf-8"))
        if name.rpartition(".")[2].startswith("test_")
    ]
    assert not found


def test_what_tests_share_exists_once() -> None:
    """A helper module has a name of its own, and so has what waits or finds a port."""
    helpers = [module for module in TESTS if not module.name.startswith(("test_", "__init__"))]
    programs = ("conftest.py", "run.py")
    names = Counter(module.name for module in helpers if module.name not in programs)
    assert [name for name, count in names.items() if count > 1] == []
    made = Counter(
        name
        for module in TESTS
        for name in re.findall(r"(?m)^(?:async )?def (\w+)", module.read_text("utf-8"))
    )
    shared = ("alive", "free_port", "happens", "until", "wait_until_gone")
    assert {name: made[name] for name in shared} == dict.fromkeys(shared, 1)


def test_every_package_is_typed() -> None:
    assert [package for package in ORDER if not (ROOT / package / "py.typed").exists()] == []
