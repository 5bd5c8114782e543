"""The connections of an edge to the leader of a log."""

import asyncio
import dataclasses
import time
from typing import cast

import pytest

from actors.connection.listener import ListenerOptions
from cluster import leader_link
from cluster.client_header import MAGIC, NONCE_SIZE, PeerAnswer
from cluster.edge_client import ClientStage, EdgeClient, Upstream
from cluster.edge_listeners import Edges
from cluster.leader_link import LeaderLink, LeaderPlace
from cluster.status import NodeStatus, Role


class SilentTransport(asyncio.Transport):
    """A connection to the leader that notes how it ends."""

    aborted = False

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Have none."""

    def write(self, _data: object) -> None:
        """Send nothing."""

    def is_closing(self) -> bool:
        return self.aborted

    def abort(self) -> None:
        self.aborted = True


class Client(EdgeClient):
    """A client without a socket."""

    __slots__ = ("closed",)

    def __init__(self) -> None:
        super().__init__(cast("Edges", None), ListenerOptions("one", 1000, 60.0), 0.0)
        self.closed = False

    def header(self, nonce: bytes) -> bytes:
        return nonce

    def close(self) -> None:
        self.closed = True


class Owner:
    """An edge whose connections are made at once, or fail."""

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.attempts = 0
        self.made: list[tuple[Upstream, SilentTransport]] = []

    def give(self, _client: EdgeClient) -> bool | None:
        """Pass on bytes."""
        return None

    async def reach(self, client: EdgeClient, leader: LeaderPlace) -> Upstream:
        del leader
        self.attempts += 1
        if self.error is not None:
            raise self.error
        upstream, transport = Upstream(client), SilentTransport()
        upstream.connection_made(transport)
        self.made.append((upstream, transport))
        return upstream

    def on_lost(self, log: int) -> None:
        """Ignore it."""

    def refused_by_leader(self, client: EdgeClient) -> None:
        """Ignore it."""


def answer(upstream: Upstream, what: PeerAnswer = PeerAnswer.ACCEPTED) -> None:
    """Greet the edge as the leader does, and answer its header."""
    upstream.data_received(MAGIC + bytes(NONCE_SIZE))
    upstream.data_received(what.value)


async def settle(iterations: int = 5) -> None:
    """Let the event loop run what is ready, and what follows from it."""
    for _ in range(iterations):
        await asyncio.sleep(0)


async def opening() -> tuple[LeaderLink, Client, Upstream, SilentTransport]:
    """Return a client of a link whose leader has not answered yet."""
    owner = Owner()
    link = LeaderLink(0, owner, lambda: 0.0)
    link.follow(LeaderPlace(1, "a"))
    client = Client()
    link.park(client)
    await asyncio.sleep(0)
    ((upstream, transport),) = owner.made
    return link, client, upstream, transport


async def test_a_client_accepted_when_there_is_a_later_leader_is_closed() -> None:
    link, client, upstream, transport = await opening()
    answer(upstream)
    link.follow(LeaderPlace(2, "b"))  # in the same iteration of the event loop
    assert client.stage is ClientStage.OPEN
    await settle()
    assert client.closed
    assert transport.aborted
    assert not link.open
    assert not link.parked


async def test_a_client_accepted_when_the_time_is_over_is_passed_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(leader_link, "_OPEN_SECONDS", 0.01)
    link, client, upstream, transport = await opening()
    # The next iteration of the event loop runs both, the acceptance first.
    asyncio.get_running_loop().call_soon(answer, upstream)
    time.sleep(0.02)  # noqa: ASYNC251 - the time limit passes
    await settle()
    assert client.stage is ClientStage.OPEN
    assert list(link.open) == [client]
    assert not transport.aborted
    link.follow(LeaderPlace(2, "b"))
    assert client.closed
    assert transport.aborted


async def test_a_client_whose_leader_changes_before_it_is_connected_to_waits_for_the_next() -> None:
    owner = Owner()
    link = LeaderLink(0, owner, lambda: 0.0)
    link.follow(LeaderPlace(1, "a"))
    client = Client()
    link.park(client)
    link.follow(LeaderPlace(2, "b"))  # before the attempt has begun
    assert link.parked == 1
    await settle()
    ((upstream, _),) = owner.made
    answer(upstream)
    await settle()
    assert [place.node for place, _ in link.open.values()] == ["b"]


@pytest.mark.parametrize(
    "error", [OverflowError("port must be 0-65535"), UnicodeError("label too long")]
)
async def test_a_leader_with_an_impossible_address_is_tried_now_and_then(error: Exception) -> None:
    owner = Owner(error)
    link = LeaderLink(0, owner, lambda: 0.0)
    link.follow(LeaderPlace(1, "a", "10.0.0.1", 65_536))
    link.park(Client())
    await settle(20)
    assert owner.attempts == 1
    assert link.parked == 1
    link.close()


async def test_a_client_gets_one_connection_if_a_leader_is_heard_when_an_attempt_fails() -> None:
    """With two, its CONNECT went into one and what followed into the other."""
    loop = asyncio.get_running_loop()
    client = Client()

    class FirstFails(Owner):
        async def reach(self, client: EdgeClient, leader: LeaderPlace) -> Upstream:
            if leader.epoch == 1:
                # Runs behind the attempt's end, and before its task's callbacks.
                loop.call_soon(link.follow, LeaderPlace(2, "b"))
                raise OSError("refused")
            return await super().reach(client, leader)

    owner = FirstFails()
    link = LeaderLink(0, owner, lambda: 0.0)
    link.follow(LeaderPlace(1, "a"))
    link.park(client)
    await settle(10)
    assert owner.attempts == 1
    assert link.parked == 1
    ((upstream, _),) = owner.made
    answer(upstream)
    await settle()
    assert [one for _, one in link.open.values()] == [upstream]
    assert not link.parked


async def test_a_client_waits_when_the_leader_takes_no_clients() -> None:
    """The leader does not know whether it still leads; it answers, and closes the connection."""
    link, client, upstream, _ = await opening()
    answer(upstream, PeerAnswer.LATER)
    upstream.connection_lost(None)
    await settle()
    assert client.stage is ClientStage.PARKED
    assert not client.closed
    assert link.parked == 1
    link.close()


async def test_clients_wait_if_the_leader_takes_none_for_some_time() -> None:
    now = 0.0
    link = LeaderLink(0, Owner(), lambda: now)
    status = NodeStatus("a", Role.LEADING, 1, 1, "", 0, peers="h:1")
    link.heard(status)
    assert not link.waiting(10.0)
    now = 20.0
    assert link.waiting(10.0) == "no leader is known"
    link.heard(dataclasses.replace(status, serving=False))
    assert link.waiting(10.0) == "the leader takes no clients"
    link.heard(status)
    assert not link.waiting(10.0)
