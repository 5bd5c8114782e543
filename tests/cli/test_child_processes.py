"""Processes beside the broker: when they start, and what is said of their ends."""

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from structlog.testing import capture_logs

from cli.logs import index_process, outbox_child
from cli.logs.index_process import IndexProcess, LogGrowth
from cli.settings.broker_child import BrokerChild
from eventstore.errors import CorruptLog, LogUnavailable


class Gone:
    """The standard input of a process that has ended."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def write(self, _data: bytes) -> None:
        raise self._error

    async def drain(self) -> None:
        raise self._error


@pytest.mark.parametrize(
    "error",
    [
        BrokenPipeError(),
        ConnectionResetError(),
        RuntimeError("unable to perform operation; the handler is closed"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_process_may_end_before_it_has_read_what_it_is_given(
    error: Exception, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def wait() -> int:
        return -9

    async def create(*_: object, **_options: object) -> Any:
        return SimpleNamespace(stdin=Gone(error), wait=wait)

    monkeypatch.setattr(asyncio, "create_subprocess_exec", create)
    assert asyncio.run(BrokerChild()._run(["outbox", "run"], {}, b"settings")) == "signal 9"


MIB = 1024 * 1024
LOOKS = 5


class FakeProcess(IndexProcess):
    """Counts its starts instead; they succeed."""

    def __init__(self) -> None:
        super().__init__()
        self.starts = 0

    async def _run(self, _arguments: Sequence[str], _environment: Mapping[str, str]) -> str:
        self.starts += 1
        return "exit 0"

    async def look(self, records: int, *, written: int, size: int | None) -> int:
        """Look at a log that does not grow; return how often the process was started."""
        enough, looks = asyncio.Event(), 0

        async def log_size() -> int:
            if size is None:
                raise LogUnavailable("no answer")
            return size

        def last() -> int:
            nonlocal looks
            looks += 1
            if looks > LOOKS:
                enough.set()
            return records

        datadir = cast("Any", SimpleNamespace(path=Path("nowhere")))
        growth = LogGrowth(last, lambda: written, log_size)
        keeping = asyncio.create_task(self._keep(datadir, {}, growth))
        await enough.wait()
        keeping.cancel()
        return self.starts


@pytest.mark.parametrize(
    ("records", "size", "starts"),
    [(640, 34 * MIB, 1), (20_000, MIB, 1), (640, MIB, 0), (640, None, 0)],
)
def test_it_is_started_for_many_records_or_large_ones(
    monkeypatch: pytest.MonkeyPatch, records: int, size: int | None, starts: int
) -> None:
    """A million small messages that came at once are a few hundred records."""
    monkeypatch.setattr(index_process, "_LOOK_SECONDS", 0.0)
    looking = FakeProcess().look(records, written=0, size=size)
    assert asyncio.run(looking) == starts


def test_failures_are_logged_and_a_known_one_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    failures: list[Exception] = [CorruptLog(7, "is damaged"), ZeroDivisionError()]
    last = asyncio.Event()

    class Failing:
        async def run(self) -> None:
            if not failures:
                last.set()
                await asyncio.Event().wait()
            raise failures.pop(0)

    def make(*_settings: object) -> Failing:
        return Failing()

    monkeypatch.setattr(outbox_child, "_runner", make)
    monkeypatch.setattr(outbox_child, "_FAILED_AGAIN", (0.001, 0.001))

    async def scenario() -> None:
        settings = {"kind": "http", "name": "erp"}
        unused = None
        keeping = asyncio.create_task(
            outbox_child._keep(settings, unused, unused, unused, unused)  # type: ignore[arg-type]
        )
        await last.wait()
        keeping.cancel()

    with capture_logs() as logged:
        asyncio.run(scenario())
    known, unknown = logged
    assert known["to"] == unknown["to"] == "erp"
    assert "is damaged" in known["reason"]
    assert "exc_info" not in known
    assert isinstance(unknown["exc_info"], ZeroDivisionError)
