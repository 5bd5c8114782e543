"""Commands about several logs go on with the others when one of them fails."""

import contextlib
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from cli.commands import verify_log, verify_state
from cli.logs.logs import IncompleteLogs, Logs
from eventstore.errors import CutMeanwhile, NatsUnavailable

FLAGS: Any = None


@contextlib.asynccontextmanager
async def two_logs(*_flags: object, **_more: object) -> AsyncIterator[Logs]:
    logs = Logs(["n-p0", "n-p1"])
    logs.update({"n-p0": "first", "n-p1": "second"})  # type: ignore[dict-item]
    yield logs


def test_verify_compares_the_other_logs_when_one_is_cut_again_and_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[str] = []

    async def outcome(_self: object, source: str) -> SimpleNamespace:
        compared.append(source)
        if source == "first":
            raise CutMeanwhile(3)
        return SimpleNamespace(equal=True)

    monkeypatch.setattr(verify_state, "open_logs", two_logs)
    monkeypatch.setattr(verify_state._Verification, "_outcome", outcome)
    monkeypatch.setattr(verify_state._Verification, "_print", lambda *_: None)
    with pytest.raises(IncompleteLogs, match="without 1 of 2 logs: log n-p0"):
        verify_state.run_verify_state(FLAGS, None, stored=False, as_json=False)
    assert compared.count("second") == 1
    assert compared.count("first") == 1 + verify_state._TRIES


def test_a_log_whose_exchange_cannot_be_checked_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def verified(*_log: object, **_more: object) -> verify_log._Verified:
        return verify_log._Verified(SimpleNamespace(records=1, entries=1), intact=True)  # type: ignore[arg-type]

    async def exchange(log: str, *_more: object, **_json: object) -> bool:
        if log == "n-p0":
            raise NatsUnavailable("no answer")
        return True

    monkeypatch.setattr(verify_log, "open_logs", two_logs)
    monkeypatch.setattr(verify_log, "_verify", verified)
    monkeypatch.setattr(verify_log, "_verify_exchange", exchange)
    with pytest.raises(IncompleteLogs, match="without 1 of 2 logs: log n-p0: no answer"):
        verify_log.run_verify_log(FLAGS)
