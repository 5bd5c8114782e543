"""SIGHUP: after any error in a reload, the next SIGHUP is still handled."""

import asyncio
import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from structlog.testing import capture_logs

from cli.serve.service import Service
from cli.serve.systemd_notify import Notifier
from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings, load_settings


class FakeServiceManager(Notifier):
    """Records what the service manager would be told."""

    def __init__(self) -> None:
        super().__init__({})
        self.words: list[str] = []
        self.again = asyncio.Event()

    def _notify(self, *lines: str) -> None:
        self.words.append(lines[0])
        if lines[0] == "READY=1":
            self.again.set()


def reading(*errors: Exception) -> Any:
    """What reads the settings again: it fails each time in another way."""
    left: Iterator[Exception] = iter(errors)

    def reread() -> Settings:
        raise next(left)

    return reread


@pytest.mark.parametrize(
    ("error", "reason", "unforeseen"),
    [
        (ConfigError("bad"), "bad", False),
        (ValueError("embedded null byte"), "embedded null byte", False),
        (PermissionError(13, "Permission denied"), "[Errno 13] Permission denied", False),
        (KeyError("x"), "internal error, please report it", True),
    ],
)
async def test_an_error_ends_one_reload_only(
    error: Exception, reason: str, unforeseen: bool
) -> None:
    service: Any = Service(load_settings({}, {}), reading(error, ConfigError("again")))
    before = service._settings
    told = service._notifier = FakeServiceManager()
    broker: Any = SimpleNamespace(node=SimpleNamespace(reload=None))
    reloading = asyncio.create_task(service._reload_on_hangup(broker))
    with capture_logs() as lines:
        for _ in range(2):
            told.again.clear()
            service._hangup.set()
            await asyncio.wait_for(told.again.wait(), 30)
    assert not reloading.done()
    reloading.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await reloading
    first, second = lines
    assert (
        first["event"]
        == second["event"]
        == "settings not reloaded, previous settings stay in effect"
    )
    assert (first["log_level"], first["reason"], second["reason"]) == ("error", reason, "again")
    assert bool(first.get("exc_info")) is unforeseen
    assert told.words == ["RELOADING=1", "READY=1"] * 2
    assert service._settings is before
    assert broker.node.reload[1:3] == ("again", ())
