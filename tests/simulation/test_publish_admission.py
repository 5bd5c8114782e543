"""Admission of messages: reason codes before a connection is closed, and settings that change."""

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p

from eventstore.format.events import MessageDropped
from simulation.checking import check_promises
from simulation.permission_worlds import OPEN, permit, topics
from simulation.world import SimClient, World, in_world

if TYPE_CHECKING:
    pass

NO_LOCKS = OPEN + "[[deny]]\npublish = ['locked']\n"
IS_TEXT = ((p5.PAYLOAD_FORMAT, 1),)


def raw(client: SimClient) -> bytes:
    """All bytes that a client received."""
    return b"".join(data for _, data in client.transcript)


@pytest.mark.mqtt("MQTT-3.3.5-2")
@in_world(close_denied=True, check_payload_format=True)
async def test_messages_before_the_one_that_closes_the_connection_get_their_own_reason_codes(
    world: World,
) -> None:
    permit(world, NO_LOCKS)
    reader = await world.connect("r", filters=[("a", 1)])
    sender = await world.connect("s", mqtt5=True)
    sender.mqtt5 = False  # what follows is at level 5 already
    sender.send(
        p5.publish("a", b"\xff", 1, 1, properties=IS_TEXT),
        p5.publish("a", b"x", 1, 2),
        p5.publish("locked", b"x", 1, 3),
    )
    await world.go(1)
    assert not sender.open
    assert topics(reader) == ["a"]
    said = raw(sender)
    assert b"\x00\x01\x99" in said
    assert p.puback(2) in said
    assert b"\x00\x02\x99" not in said
    assert b"\x00\x03\x87" not in said
    drops = world.disk.events(MessageDropped)
    assert [drop.reason for drop in drops] == ["not_permitted", "payload_format"]
    await check_promises(world)


def reload_levels(world: World, levels: int) -> None:
    """Change ``max_topic_levels``."""
    broker = world.broker
    bounds = replace(broker.node.options.bounds, max_topic_levels=levels)
    broker.reload(replace(broker.node.options, bounds=bounds), broker.admission.authenticator)


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_world()
async def test_another_maximum_of_levels_applies_to_topics_that_were_published_to_before(
    world: World,
    qos: int,
) -> None:
    reader = await world.connect("r", filters=[("#", qos)])
    sender = await world.connect("s")
    await world.go(3)  # the client is no longer new: the fast path handles its packets
    expected: list[str] = []
    for number, levels in enumerate((2, 1, 2, 0), 1):
        reload_levels(world, levels)
        sender.send(p.publish("a/b", b"x", qos, number))
        await world.go(0.1)
        if qos == 2:
            sender.send(p.pubrel(number))
            await world.go(0.1)
        expected += ["a/b"] if levels != 1 else []
        assert topics(reader) == expected
    drops = world.disk.events(MessageDropped)
    assert drops == ([MessageDropped("s", "topic_levels", 1, topics=["a/b"])] if qos else [])
    assert world.broker.node.dropped == {"topic_levels": 1}
    assert world.broker.node.limits.refused.counts["topic_levels"] == 1
    await check_promises(world)
