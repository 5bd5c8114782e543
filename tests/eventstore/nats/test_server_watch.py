"""When a connection without answers changes its NATS server."""

import itertools
from types import SimpleNamespace
from typing import Any, cast

import pytest
import structlog

from eventstore.errors import LogUnavailable
from eventstore.nats import jetstream
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.jetstream import ServerWatch


class Connection:
    """A connection to one server after the other; some of them reach JetStream's leader."""

    def __init__(self, *cut_off: int) -> None:
        self.is_connected = True
        self.cut_off = set(cut_off)
        self.changed: list[float] = []
        self.now = 0.0

    @property
    def connected_url(self) -> Any:
        return SimpleNamespace(hostname=f"n{len(self.changed)}", port=4222, netloc="u:p@n")

    async def change_server(self) -> None:
        self.changed.append(self.now)

    async def ask(self, _client: object, seconds: float) -> None:
        if len(self.changed) in self.cut_off:
            self.now += seconds
            raise LogUnavailable("JetStream does not answer INFO")

    async def pause(self, seconds: float) -> None:
        assert 0 < seconds < 1
        self.now += 0.5


def watched(connection: Connection, monkeypatch: pytest.MonkeyPatch) -> ServerWatch:
    monkeypatch.setattr(jetstream, "check_jetstream", connection.ask)
    monkeypatch.setattr(jetstream, "asyncio", SimpleNamespace(sleep=connection.pause))
    monkeypatch.setattr(jetstream, "time", SimpleNamespace(monotonic=lambda: connection.now))
    return ServerWatch(cast("DirectClient", connection), "stream S")


async def test_a_server_that_is_cut_off_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = Connection(0)
    watch = watched(connection, monkeypatch)
    with structlog.testing.capture_logs() as lines:
        await watch.unanswered()
    assert connection.changed == [0.5]
    (line,) = lines
    assert (line["missing"], line["server"]) == ("stream S", "n0:4222")


async def test_a_server_is_kept_while_a_stream_has_no_leader(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No other server would answer, and the change would interrupt what works."""
    connection = Connection()
    watch = watched(connection, monkeypatch)
    while connection.now < 4.9:
        await watch.unanswered()
    assert connection.changed == []
    watch.answered()
    while connection.now < 9.8:
        await watch.unanswered()
    assert connection.changed == []
    while connection.now < 90:
        await watch.unanswered()
    pauses = [later - one for one, later in itertools.pairwise(connection.changed)]
    assert pauses == [10, 20, 40]


async def test_servers_are_changed_less_and_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as JetStream has no leader, it does not help."""
    connection = Connection(*range(100))
    watch = watched(connection, monkeypatch)
    while connection.now < 60:
        await watch.unanswered()
    assert 6 < len(connection.changed) < 12
    assert connection.changed[-1] - connection.changed[-2] >= 8
    watch.answered()
    before = len(connection.changed)
    await watch.unanswered()
    assert len(connection.changed) == before + 1


async def test_a_connection_that_is_being_made_is_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = Connection(0)
    connection.is_connected = False
    watch = watched(connection, monkeypatch)
    await watch.unanswered()
    assert connection.changed == []
