"""Settings of all tests: no failure because the machine is slow, and one shared Spark."""

from __future__ import annotations

import gc
import os
import signal
import sys
from collections.abc import Generator, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, settings

from protocol.mqtt import decoder

if TYPE_CHECKING:
    from harness.file_order import LongFirst
    from pyspark.sql import SparkSession

settings.register_profile(
    "any machine", max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.register_profile("few", settings.get_profile("any machine"), max_examples=20)
settings.register_profile("many", settings.get_profile("any machine"), max_examples=1000)
settings.load_profile("any machine")

# A shell has what it runs in the background ignore Ctrl-C, and all that this starts inherits it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Each test runs a few small jobs: Java would take longer to compile them well than to run them,
# to collect garbage beside them than to stop for it, and to check each class of Spark's before it
# is used, which are as they were released.
os.environ.setdefault(
    "JAVA_TOOL_OPTIONS",
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC "
    "-XX:+IgnoreUnrecognizedVMOptions -XX:+UnlockDiagnosticVMOptions "
    "-XX:-BytecodeVerificationRemote",
)


_SYSTEM = ("conformance", "conformance_mqtt5", "e2e", "recipes", "spark")
"""Folders whose tests have the mark ``system``, all of them."""
_TWICE = ("eventstore/format/", "projections/state/", "protocol/mqtt/", "protocol/mqtt5/")
"""Folders whose pure tests have the mark ``twice``: they decode, encode and fold."""
_IMPURE = {"os.fork", "os.posix_spawn", "socket.bind", "socket.connect", "subprocess.Popen"}
_pure: list[str] = []
"""The test that runs, if it has not the mark ``system``."""


def _watch(event: str, arguments: tuple[object, ...]) -> None:
    if event in ("os.kill", "os.killpg") and arguments[0] in (0, -1):
        raise AssertionError("no process: the signal would end the tests")
    if event in _IMPURE and _pure:
        raise AssertionError(f"{_pure[0]} is no pure test ({event}): mark it with system")


sys.addaudithook(_watch)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of whole folders; skip those that need plain Python."""
    plain = str(decoder.__file__).endswith(".py")
    for item in items:
        system, twice = _folder_marks(item.path)
        if system:
            item.add_marker(pytest.mark.system)
        elif twice and not item.get_closest_marker("slow"):
            item.add_marker(pytest.mark.twice)
        if not plain and item.get_closest_marker("plain"):
            item.add_marker(pytest.mark.skip(reason="runs with FOLDMQ_PLAIN=1"))


@cache
def _folder_marks(path: Path) -> tuple[bool, bool]:
    """Return whether tests of a file have the marks ``system`` and ``twice`` for their folder."""
    inside = path.relative_to(Path(__file__).parent)
    return inside.parts[0] in _SYSTEM, inside.as_posix().startswith(_TWICE)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect without the collector of garbage: of the many objects nearly all stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Let the collector of garbage leave out what was collected: it stays until the end.

    Looking for the little garbage among it takes a second of each worker.
    """
    gc.freeze()


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """Let no test but those with the mark start a process or open a socket."""
    _pure[:] = [] if item.get_closest_marker("system") else [item.nodeid]
    try:
        return (yield)
    finally:
        _pure.clear()


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LongFirst | None:
    """Where whole files are distributed, decide which is next."""
    if config.getoption("dist") != "loadfile":
        return None
    from harness.file_order import LongFirst

    return LongFirst(config, log)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """Spark on two cores of this machine, for all tests that need it."""
    from harness.sparklimits import session_of_worker

    with session_of_worker() as session:
        yield session


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[Any]
) -> Generator[None, None, None]:
    """Discard a Spark in whose middle a test was ended, or that has ended itself."""
    # The module was imported if the fixture was used.
    limits = sys.modules.get("harness.sparklimits") if call.excinfo is not None else None
    if limits is not None and limits.must_go(item, call):
        limits.discard(item)
    yield
