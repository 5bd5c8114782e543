"""Spark and the time limit of a test: separate limit for the start, no interrupted calls.

The time limit of a test raises an exception in the middle of a call to the JVM. The answer to that
call would be taken for the answer to the next one, in every later test of the worker. So the
session is discarded with its JVM, and later tests get another.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pytest

from harness.spark_plans import INTERPRETED
from spark.runtime.session import _works as answers
from spark.runtime.session import kill_jvm, running_session

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

START_SECONDS = 300.0
"""How long a start of Spark may take, beside what a test may take."""

_FEW = {"spark.sql.shuffle.partitions": "2", **INTERPRETED}


@contextlib.contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Have what runs inside end after these seconds, and not count for the test."""
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    if not left:  # no test has a limit, as with --timeout 0
        yield
        return
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)


@contextlib.contextmanager
def session_of_worker() -> Iterator[SparkSession]:
    """Start Spark on two cores of this machine; end it, unless it was discarded."""
    with contextlib.ExitStack() as stack:
        with limited(START_SECONDS):
            session = stack.enter_context(running_session("local[2]", "1g", _FEW))
        yield session


def must_go(item: pytest.Item, call: pytest.CallInfo[Any]) -> bool:
    """Whether no later test may use the Spark of this worker.

    A test that uses it was cut, maybe in the middle of a call; or a test failed and there is no
    Spark that answers: the start failed, or the JVM was killed, as a system does that is short of
    memory.
    """
    if call.excinfo is None or call.excinfo.errisinstance(pytest.skip.Exception):
        return False
    if call.excinfo.errisinstance(pytest.fail.Exception):
        # A test may also ask for it while it runs.
        used = "spark" in getattr(getattr(item, "_request", None), "fixturenames", ())
        if used and str(call.excinfo.value).startswith("Timeout"):
            return True
    return any(one.cached_result is not None for one in _fixtures(item)) and not answers()


def discard(item: pytest.Item) -> None:
    """Kill the JVM; the fixture ``spark``, and all that were made with it, are made anew."""
    kill_jvm()
    assert isinstance(item, pytest.Function)
    for fixture in _fixtures(item):
        # Spark cannot be stopped any more.
        with contextlib.suppress(Exception):
            fixture.finish(item._request)


def _fixtures(item: pytest.Item) -> Sequence[pytest.FixtureDef[Any]]:
    return item.session._fixturemanager.getfixturedefs("spark", item) or ()
