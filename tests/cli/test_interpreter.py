"""The message about how Python was built, and the choice of Python by ``make``."""

import sys

import pytest
import structlog

from cli.common import interpreter
from cli.serve.banner import Facts, announce
from cli.settings.settings import load_settings


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
