"""Timeouts: keep alive, ack_wait, expiry, takeover_delay, the time limit for CONNECT."""

from typing import TYPE_CHECKING

import pytest
from harness import packets as p
from harness.packets import Publish

from actors.connection.listener import Listener, ListenerOptions
from actors.node.read_pause import ReadPause
from eventstore.format.events import Redelivered, SessionClosed, SessionExpired
from simulation.idle_broker import look_rarely
from simulation.world import SimClient, World, in_world, simulate

if TYPE_CHECKING:
    pass


def publishes(client: SimClient) -> list[Publish]:
    return [packet for packet in client.take() if isinstance(packet, Publish)]


@pytest.mark.mqtt("MQTT-3.1.2-24")
@in_world()
async def test_silence_of_one_and_a_half_keep_alives_closes(world: World) -> None:
    client = await world.connect("c", keepalive=10)
    for _ in range(5):
        await world.go(14)
        client.send(p.pingreq())
        await world.calm()
    assert client.open
    await world.go(14.9)
    assert client.open
    await world.go(0.3)
    assert not client.open
    closed = world.disk.events(SessionClosed)
    assert [one.reason for one in closed] == ["keep_alive"]


def test_without_a_keep_alive_silence_is_allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    look_rarely(monkeypatch)

    async def scenario() -> None:
        async with World().running() as world:
            client = await world.connect("c", keepalive=0)
            await world.go(100_000)
            assert client.open

    simulate(scenario)


@in_world(connect_timeout=10.0)
async def test_a_connect_must_come_in_time(world: World) -> None:
    client = SimClient(world)
    client.send(p.connect("c")[:5])
    await world.go(9.9)
    assert client.open
    await world.go(0.2)
    assert not client.open
    assert not world.broker.admission.connections


@in_world(connect_timeout=10.0)
async def test_the_time_that_a_client_waited_at_the_main_process_counts(world: World) -> None:
    options = ListenerOptions("", 1000, 10.0)
    client = SimClient(world, listener=Listener(options, 0), waited=4.0)
    client.send(p.connect("c")[:5])
    await world.go(5.9)
    assert client.open
    await world.go(0.2)
    assert not client.open


@in_world(ack_wait=30.0)
async def test_unacknowledged_messages_are_redelivered_under_their_identifier(world: World) -> None:
    client = await world.connect("c", filters=[("a", 1)])
    client.send(p.publish("a", b"x", 1, 1))
    await world.go(1)
    assert publishes(client) == [Publish("a", b"x", 1, 1)]
    await world.go(28)
    assert publishes(client) == []
    await world.go(3)
    assert publishes(client) == [Publish("a", b"x", 1, 1, dup=True)]
    await world.go(30)
    assert publishes(client) == [Publish("a", b"x", 1, 1, dup=True)]
    client.send(p.puback(1))
    await world.go(100)
    assert publishes(client) == []


@in_world(ack_wait=30.0)
async def test_nothing_is_sent_again_while_acknowledgements_may_be_unread(world: World) -> None:
    client = await world.connect("c", filters=[("a", 1)])
    client.send(p.publish("a", b"x", 1, 1))
    await world.go(1)
    assert publishes(client) == [Publish("a", b"x", 1, 1)]
    session = world.broker.sessions.find_session("c")
    assert session is not None
    assert session.connection is not None
    session.connection.pause(ReadPause.LOG)
    await world.go(60)
    assert publishes(client) == []
    session.connection.resume(ReadPause.LOG)
    await world.go(2)
    assert publishes(client) == [Publish("a", b"x", 1, 1, dup=True)]


@in_world(ack_wait=30.0)
async def test_redelivery_does_not_become_more_frequent_with_time(world: World) -> None:
    client = await world.connect("c", filters=[("a", 1)])
    client.send(p.publish("a", b"x", 1, 1))
    await world.go(30 * 20 + 10)
    assert 18 <= len(publishes(client)) <= 21
    again = world.disk.events(Redelivered)
    assert len(again) <= 20
    assert len(world.broker.node.timers) < 10


@in_world(ack_wait=0.0)
async def test_without_ack_wait_nothing_is_sent_again_while_connected(world: World) -> None:
    client = await world.connect("c", filters=[("a", 1)])
    client.send(p.publish("a", b"x", 1, 1))
    await world.go(1000)
    assert len(publishes(client)) == 1


@pytest.mark.parametrize("restart", [False, True])
@in_world(session_expiry=60.0)
async def test_an_offline_session_expires(world: World, *, restart: bool) -> None:
    client = await world.connect("c", filters=[("a", 1)])
    stays = await world.connect("stays")
    client.send(p.disconnect())
    await world.go(40)
    if restart:
        await world.restart()
        await world.go(15)
        stays = await world.connect("stays", present=True)
    else:
        await world.go(15)
    assert "c" in world.broker.node.state.sessions
    await world.go(10)
    assert list(world.broker.node.state.sessions) == ["stays"]
    assert stays.open
    gone = world.disk.events(SessionExpired)
    assert [one.session for one in gone] == ["c"]
    assert world.broker.node.router.subscriptions == 0
    await world.connect("c", present=False)


@in_world(session_expiry=60.0)
async def test_a_session_that_came_back_in_time_does_not_expire(world: World) -> None:
    client = await world.connect("c")
    client.send(p.disconnect())
    await world.go(50)
    again = await world.connect("c", present=True)
    await world.go(50)
    again.send(p.disconnect())
    await world.go(50)
    await world.connect("c", present=True)


@in_world()
async def test_an_idle_offline_session_costs_no_actor_and_loses_nothing(world: World) -> None:
    at_rest = len(world.broker.kernel)
    client = await world.connect("c", filters=[("a", 1)])
    client.send(p.disconnect())
    await world.go(30)
    assert len(world.broker.kernel) == at_rest
    sender = await world.connect("d")
    sender.send(p.publish("a", b"x", 1, 1))
    await world.go(30)
    assert publishes(await world.connect("c", present=True)) == [Publish("a", b"x", 1, 1)]
