"""The process of the outbox: a destination that fails is started again."""

import asyncio

import pytest
from structlog.testing import capture_logs

from cli.logs import outbox_child
from eventstore.errors import CorruptLog


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
