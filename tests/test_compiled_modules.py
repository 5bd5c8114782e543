"""Compiled modules: which there are, and when the finder uses them."""

import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tools"))
from compiled_finder import FOLDER, MANIFEST, CompiledFinder, digest  # noqa: E402

sys.path.pop(0)


def compiled() -> list[str]:
    with (ROOT / "pyproject.toml").open("rb") as file:
        found: list[str] = tomllib.load(file)["tool"]["foldmq"]["compiled"]
    return found


def test_the_list_has_modules_that_exist_in_order() -> None:
    assert compiled() == sorted(set(compiled()))
    assert [path for path in compiled() if not (ROOT / path).is_file()] == []


@pytest.fixture
def found_in(tmp_path: Path) -> Callable[[], bool]:
    """A checkout with one compiled module; says whether that is found."""
    source = tmp_path / "checkout" / "package" / "module.py"
    source.parent.mkdir(parents=True)
    source.write_text("x = 1\n")
    folder = tmp_path / FOLDER
    folder.mkdir()
    manifest = {"files": {"package.module": "m.so"}, "sources": {str(source): digest(source)}}
    (folder / MANIFEST).write_text(json.dumps(manifest))

    def found(package: Path = source.parent, name: str = "package.module") -> bool:
        return CompiledFinder(folder).find_spec(name, [str(package)]) is not None

    return found


def test_a_compiled_module_is_found_in_place_of_its_source(found_in: Callable[..., bool]) -> None:
    assert found_in()
    assert not found_in(name="package.other")


def test_a_changed_source_is_not_hidden(found_in: Callable[..., bool], tmp_path: Path) -> None:
    source = tmp_path / "checkout" / "package" / "module.py"
    source.write_text("x = 2\n")
    assert not found_in()
    source.unlink()
    assert not found_in()


def test_another_checkout_runs_as_it_is(found_in: Callable[..., bool], tmp_path: Path) -> None:
    assert not found_in(tmp_path / "elsewhere" / "package")


def test_shared_modules_are_found_only_for_the_own_checkout(
    found_in: Callable[..., bool], tmp_path: Path
) -> None:
    folder, source = tmp_path / FOLDER, tmp_path / "checkout" / "package" / "module.py"
    files = {"package.module": "m.so", "0123__mypyc": "0123__mypyc.so"}
    manifest = {"files": files, "sources": {str(source): digest(source)}}
    (folder / MANIFEST).write_text(json.dumps(manifest))
    finder = CompiledFinder(folder)
    assert finder.find_spec("0123__mypyc") is None
    assert finder.find_spec("package.module", [str(tmp_path / "elsewhere")]) is None
    assert finder.find_spec("0123__mypyc") is None
    assert finder.find_spec("package.module", [str(source.parent)]) is not None
    assert finder.find_spec("0123__mypyc") is not None


@pytest.mark.system
def test_plain_python_on_request() -> None:
    code = "import protocol.mqtt.decoder as found; print(found.__file__)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "FOLDMQ_PLAIN": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.strip().endswith("decoder.py")


_IMPORT_EACH = """
import importlib, os, sys
import asyncio, logging, orjson, pydantic, pykka, ssl, structlog  # theirs are not what is tried
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if not child:
        importlib.import_module(name)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
print(*failed)
"""


@pytest.mark.system
def test_each_module_can_be_the_first_that_is_imported() -> None:
    """A compiled module may use a class of another one before that one is loaded."""
    names = [path.removesuffix(".py").replace("/", ".") for path in compiled()]
    command = [sys.executable, "-c", _IMPORT_EACH, *names]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
