"""QoS 2 messages with an expiry whose PUBREL comes late: the time until then counts."""

import pytest
from harness import mqtt5_packets
from harness import packets as p
from harness.packets import Pubcomp, Publish
from harness.plainaudit import violations

from eventstore.format.events import Expired, Queued
from simulation.fold import compare
from simulation.world import SimClient, World, in_world


async def publish_early(sender: SimClient, world: World) -> None:
    """Send two messages, one of which expires before it is released."""
    sender.mqtt5 = False  # what follows is at level 5 already
    for number, seconds in ((1, 2), (2, 100)):
        properties = ((mqtt5_packets.MESSAGE_EXPIRY, seconds),)
        sender.send(mqtt5_packets.publish("a/b", b"%d" % seconds, 2, number, properties=properties))
        await world.go(0.01)
    sender.mqtt5 = True
    await world.go(5)
    sender.take()


@pytest.mark.parametrize("at_once", [True, False], ids=["one packet", "one by one"])
@pytest.mark.parametrize("resumed", [True, False], ids=["resumed", "connected"])
@pytest.mark.parametrize("level", [4, 5])
@pytest.mark.parametrize("topic_filter", ["a/b", "$share/g/a/b"])
@pytest.mark.parametrize("qos", [0, 1, 2])
@in_world()
async def test_a_message_that_is_released_late(
    world: World, topic_filter: str, qos: int, level: int, *, resumed: bool, at_once: bool
) -> None:
    reader = await world.connect("r", filters=[(topic_filter, qos)], mqtt5=level == 5)
    away = await world.connect("away", filters=[("a/+", 1)])
    away.send(p.disconnect())
    sender = await world.connect("d", mqtt5=True)
    await world.go(2)
    await publish_early(sender, world)
    if resumed:
        sender.drop()
        await world.go(1)
        sender = await world.connect("d", present=True, mqtt5=True)
    reader.mqtt5 = False  # its messages are shown as they are on the wire
    releases = p.pubrel(1), p.pubrel(2)
    for sent in [releases] if at_once else [[release] for release in releases]:
        sender.send(*sent)
        await world.go(0.01)
    answers = [packet for packet in sender.take() if isinstance(packet, Pubcomp)]
    assert answers == [Pubcomp(1), Pubcomp(2)]
    found = reader.payloads()
    assert len(found) == 1
    assert found[0].endswith(b"100")
    if level == 5:
        assert found[0][:2] == b"\x05\x02"
        left = int.from_bytes(found[0][2:6], "big")
        assert 93 <= left <= 95
    else:
        assert found[0] == b"100"
    events = world.disk.events()
    gone = {event.session for event in events if isinstance(event, Expired)}
    shared = topic_filter.startswith("$share")
    assert gone == {"away", *(["$share/g/a/b"] if shared else ["r"] if qos else [])}
    assert len([event for event in events if isinstance(event, Queued)]) == len(gone) + 1
    compare(world)
    back = await world.connect("away", present=True)
    await world.go(0.1)
    assert back.payloads() == [b"100"]
    compare(world)
    assert not violations(world.disk.decoded())


@pytest.mark.parametrize("level", [4, 5])
@in_world()
async def test_an_expired_message_that_is_released_is_not_retained(
    world: World, level: int
) -> None:
    """It replaces the retained message of its topic, and is not delivered."""
    sender = await world.connect("d", mqtt5=True)
    sender.send(p.publish("a/b", b"old", 1, 7, retain=True))
    await world.go(2)
    sender.mqtt5 = False
    properties = ((mqtt5_packets.MESSAGE_EXPIRY, 2),)
    sender.send(mqtt5_packets.publish("a/b", b"x", 2, 1, retain=True, properties=properties))
    sender.mqtt5 = True
    await world.go(5)
    sender.send(p.pubrel(1))
    await world.go(0.1)
    reader = await world.connect("r", filters=[("a/#", 2)], mqtt5=level == 5)
    await world.go(0.1)
    assert not [packet for packet in reader.take() if isinstance(packet, Publish)]
    compare(world)
    assert not violations(world.disk.decoded())
