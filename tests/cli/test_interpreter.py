"""The message about how Python was built, and the choice of Python by ``make``."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import structlog

from cli.common import interpreter
from cli.serve.banner import Facts, announce
from cli.settings.settings import load_settings

ROOT = Path(__file__).resolve().parents[2]


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


def interpreter_in(directory: Path, name: str, *, version: int, build: str, venv: int = 0) -> str:
    """A program that answers what tools/choose_python.sh asks an interpreter."""
    path = directory / name
    path.write_text(
        "#!/bin/sh\n"
        'case "$1 $2" in\n'
        f'*"sys.executable"*) echo {path} ;;\n'
        f'*"version_info"*) exit {version} ;;\n'
        f'*"ensurepip"*) exit {venv} ;;\n'
        f"*) echo {build} ;;\n"
        "esac\n"
    )
    path.chmod(0o755)
    return str(path)


def choose(*candidates: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["sh", ROOT / "tools" / "choose_python.sh", *candidates],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "LC_ALL": "C"},
    )


@pytest.mark.system
def test_make_takes_the_first_optimised_interpreter(tmp_path: Path) -> None:
    plain = interpreter_in(tmp_path, "plain", version=0, build="plain")
    old = interpreter_in(tmp_path, "old", version=1, build="optimised")
    bare = interpreter_in(tmp_path, "bare", version=0, build="optimised", venv=1)
    good = interpreter_in(tmp_path, "good", version=0, build="optimised")
    found = choose(plain, old, bare, "no-such-python", good)
    assert (found.returncode, found.stdout, found.stderr) == (0, f"{good}\n", "")


@pytest.mark.system
def test_make_uses_a_plain_interpreter_with_a_notice_if_there_is_no_other(tmp_path: Path) -> None:
    plain = interpreter_in(tmp_path, "plain", version=0, build="plain")
    old = interpreter_in(tmp_path, "old", version=1, build="optimised")
    found = choose(old, plain)
    assert (found.returncode, found.stdout) == (0, f"{plain}\n")
    assert "built without --enable-optimizations" in found.stderr


@pytest.mark.system
def test_make_explains_why_no_interpreter_fits(tmp_path: Path) -> None:
    old = interpreter_in(tmp_path, "old", version=1, build="optimised")
    found = choose(old)
    assert (found.returncode, found.stdout) == (1, "")
    assert found.stderr == (
        f"foldmq needs Python 3.11 or newer, {old} is not: make PYTHON=python3.x\n"
    )
