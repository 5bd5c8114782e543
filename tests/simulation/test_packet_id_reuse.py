"""A client that lost its state uses the packet identifiers of QoS 2 messages again."""

import pytest
from harness import packets as p
from harness.mqtt5_packets import MESSAGE_EXPIRY
from harness.mqtt5_packets import publish as publish5
from harness.packets import Pubcomp, Pubrec
from harness.plainaudit import audit_plainly, checked_records

from eventstore.format.events import InboundReplaced, Released
from eventstore.format.positions import from_runs
from simulation.world import SimClient, World, in_world


async def came_of(world: World, client: SimClient, *sent: bytes) -> list[p.Packet]:
    """What the client gets for packets."""
    client.send(*sent)
    await world.go(0.5)
    return client.take()


@pytest.mark.mqtt("MQTT-4.3.3-2", "MQTT-2.3.1-2")
@pytest.mark.parametrize("crash", [False, True])
@pytest.mark.parametrize("at_once", [False, True])
@in_world()
async def test_another_message_is_taken(world: World, *, crash: bool, at_once: bool) -> None:
    """The one that was not released does not take effect, and the log says so."""
    reader = await world.connect("r", filters=[("t", 2)])
    client = await world.connect("c")
    old, new = p.publish("t", b"old", 2, 1), p.publish("t", b"new", 2, 1)
    if at_once and not crash:
        assert await came_of(world, client, old, new) == [Pubrec(1), Pubrec(1)]
    else:
        assert await came_of(world, client, old) == [Pubrec(1)]
        if crash:
            await world.restart()
            reader = await world.connect("r", present=True)
            client = await world.connect("c", present=True)
        assert await came_of(world, client, new) == [Pubrec(1)]
    assert await came_of(world, client, p.pubrel(1)) == [Pubcomp(1)]
    got = reader.payloads()
    assert got == [b"new"]
    events = world.disk.events()
    (gone,) = [event for event in events if isinstance(event, InboundReplaced)]
    (released,) = [event for event in events if isinstance(event, Released)]
    assert from_runs(gone.pids) == [1]
    assert set(from_runs(gone.refs)).isdisjoint(from_runs(released.refs))
    assert audit_plainly("sim", checked_records(world.disk.stream.messages)) == []


@pytest.mark.mqtt("MQTT-4.3.3-2")
@pytest.mark.parametrize(
    "again",
    [
        p.publish("t", b"old", 2, 1),
        p.publish("t", b"old", 2, 1, dup=True),
        p.publish("t", b"new", 2, 1, dup=True),
    ],
)
@in_world()
async def test_the_same_message_or_one_with_dup_is_a_repetition(world: World, again: bytes) -> None:
    reader = await world.connect("r", filters=[("t", 2)])
    client = await world.connect("c")
    sent = p.publish("t", b"old", 2, 1)
    assert await came_of(world, client, sent, again) == [Pubrec(1), Pubrec(1)]
    assert await came_of(world, client, again) == [Pubrec(1)]
    assert await came_of(world, client, p.pubrel(1)) == [Pubcomp(1)]
    got = reader.payloads()
    assert got == [b"old"]
    assert not any(isinstance(event, InboundReplaced) for event in world.disk.events())


@pytest.mark.mqtt5("MQTT-4.3.3-10")
@in_world()
async def test_properties_belong_to_the_content(world: World) -> None:
    """The same message with its expiry is a repetition, with another expiry it is new."""
    client = await world.connect("c", mqtt5=True)
    for expiry in (60, 60, 61):
        sent = publish5("t", b"x", 2, 1, properties=((MESSAGE_EXPIRY, expiry),))
        await came_of(world, client, sent)
    events = world.disk.events()
    assert sum(isinstance(event, InboundReplaced) for event in events) == 1
