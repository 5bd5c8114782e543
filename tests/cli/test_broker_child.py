"""A process beside the broker that ends at once is started again, whatever its pipe says."""

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from cli.settings.broker_child import BrokerChild


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
