"""The audit trail of the web page's tokens: additions to their file, and removals."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from cli.logs.broker_client import NoLiveBroker
from cli.web import audit_trail
from cli.web.audit_trail import TokenAudit

ANN = f"ann view never {'a' * 64}"
BOB = f"bob operate 2030-01-01T00:00:00Z {'b' * 64}"


class Log:
    """The broker, as far as the trail asks it."""

    def __init__(self) -> None:
        self.away = False
        self.told: list[dict[str, Any]] = []

    async def record(self, endpoint: str, **request: Any) -> object:
        assert (endpoint, request["do"]) == ("change", "web_accessed")
        if self.away:
            raise NoLiveBroker("not now")
        self.told.append(request)
        return {}

    def take(self) -> list[tuple[str, str, str, str]]:
        told, self.told = self.told, []
        return [(one["outcome"], one["name"], one["role"], one["expires"]) for one in told]


@pytest.fixture
def log() -> Log:
    return Log()


def look(directory: Path, log: Log, *lines: str) -> TokenAudit:
    """Let a page that has just started look at a file with some lines."""
    (directory / "web.tokens").write_text("".join(line + "\n" for line in lines))
    trail = TokenAudit(directory / "web.tokens", directory / "web.tokens.recorded", log.record)
    asyncio.run(trail._look())
    return trail


ADDED_ANN = ("token_added", "ann", "view", "never")
ADDED_BOB = ("token_added", "bob", "operate", "2030-01-01T00:00:00Z")


def test_changes_without_a_running_page_are_recorded_once(tmp_path: Path, log: Log) -> None:
    look(tmp_path, log, ANN, BOB)
    assert log.take() == [ADDED_ANN, ADDED_BOB]
    look(tmp_path, log, ANN, BOB)
    assert log.take() == []
    look(tmp_path, log, "# nobody but bob", BOB)
    assert log.take() == [("token_removed", *ADDED_ANN[1:])]
    (tmp_path / "web.tokens").unlink()
    trail = TokenAudit(tmp_path / "web.tokens", tmp_path / "web.tokens.recorded", log.record)
    asyncio.run(trail._look())
    assert log.take() == [("token_removed", *ADDED_BOB[1:])]


def test_a_token_that_was_replaced_was_removed_and_added(tmp_path: Path, log: Log) -> None:
    look(tmp_path, log, ANN)
    log.take()
    look(tmp_path, log, ANN.replace("view", "operate"))
    assert log.take() == [
        ("token_removed", "ann", "view", "never"),
        ("token_added", "ann", "operate", "never"),
    ]


def test_neither_hash_nor_token_is_recorded(tmp_path: Path, log: Log) -> None:
    look(tmp_path, log, ANN)
    assert "a" * 64 not in repr(log.told)
    assert (tmp_path / "web.tokens.recorded").stat().st_mode & 0o777 == 0o600


def test_a_bad_line_removes_nothing(tmp_path: Path, log: Log) -> None:
    look(tmp_path, log, ANN, BOB)
    log.take()
    look(tmp_path, log, ANN, "bob")
    assert log.take() == []
    look(tmp_path, log, ANN)
    assert log.take() == [("token_removed", *ADDED_BOB[1:])]


def test_unrecorded_changes_are_recorded_later(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit_trail, "LOOK", 0.0)
    log.away = True

    async def scenario() -> None:
        (tmp_path / "web.tokens").write_text(ANN + "\n")
        trail = TokenAudit(tmp_path / "web.tokens", tmp_path / "web.tokens.recorded", log.record)
        keeping = asyncio.create_task(trail.keep())
        for _ in range(3):
            await asyncio.sleep(0)
        assert log.told == []
        log.away = False
        async with asyncio.timeout(20):
            while not log.told:  # noqa: ASYNC110 - the trail tells nobody else
                await asyncio.sleep(0)
        keeping.cancel()

    asyncio.run(scenario())
    assert log.take() == [ADDED_ANN]


def test_a_directory_that_cannot_be_written_repeats_nothing(tmp_path: Path, log: Log) -> None:
    (tmp_path / "web.tokens").write_text(ANN + "\n")
    trail = TokenAudit(tmp_path / "web.tokens", tmp_path / "none" / "recorded", log.record)
    asyncio.run(trail._look())
    asyncio.run(trail._look())
    assert log.take() == [ADDED_ANN]
