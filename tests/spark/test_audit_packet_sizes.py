"""Messages that the broker drops as too large for a client are too large for the audit as well."""

import random
from typing import Any

import pytest
from harness import mqtt5_packets as p
from harness.plainaudit import audit_plainly, checked_records
from simulation.loop import simulate
from simulation.network import SimClient
from simulation.world import World, in_world

from eventstore.format.events import MessageDropped
from projections.audit import single_event_rules
from projections.state.session import SessionState, SubscriptionState
from protocol.mqtt.publish_encoder_v5 import PacketVariant, prepare_publishes


class Silent(SimClient):
    """Reads and ignores everything."""

    def receive(self, data: bytes) -> None:
        pass


def comes(world: World, name: str, most: int = 0) -> Silent:
    """A client that keeps its session and accepts packets of this many bytes; 0: of any size."""
    properties: list[Any] = [(p.SESSION_EXPIRY, 1000)]
    properties += [(p.MAXIMUM_PACKET_SIZE, most)] if most else []
    client = Silent(world)
    client.send(p.connect(name, clean=False, properties=properties))
    return client


@pytest.mark.parametrize("seed", range(4))
def test_messages_dropped_as_too_large_are_too_large(seed: int) -> None:
    chance = random.Random(seed)
    drops: list[MessageDropped] = []

    async def publishes(world: World, writer: Silent, count: int) -> None:
        for _ in range(count):
            properties: list[Any] = [(p.USER_PROPERTY, ("k", "v" * chance.randrange(150)))]
            properties += [(p.MESSAGE_EXPIRY, 900)] * chance.randrange(2)
            payload = b"x" * chance.randrange(200)
            topic = chance.choice(["t/a", "t/ä/c", "t"])
            some = properties[chance.randrange(2) :]
            writer.send(p.publish(topic, payload, 1, 1, properties=some))
            await world.go(0.01)

    async def scenario() -> None:
        async with World(max_ack_pending=20).running() as world:
            reader, writer = comes(world, "s", chance.randrange(150, 250)), comes(world, "p")
            filters = [("t/#", 300), ("t/a", 5), ("t/+/c", 0), ("#", 300), ("t/a/#", 70_000)]
            for number, (topic_filter, identifier) in enumerate(filters, 1):
                properties = [(p.SUBSCRIPTION_IDENTIFIER, identifier)] if identifier else []
                reader.send(p.subscribe(number, (topic_filter, 1), properties=properties))
            await world.go(0.1)
            await publishes(world, writer, 60)
            reader.drop()
            await publishes(world, writer, 30)
            reader = comes(world, "s")
            await world.go(1)
            reader.drop()
            await publishes(world, writer, 30)
            reader = comes(world, "s", chance.randrange(20, 120))
            await world.go(1)
            for pid in range(1, 150):
                reader.send(p.acknowledge(p.PUBACK, pid))
            await world.go(1)
            drops.extend(one for one in world.disk.events() if isinstance(one, MessageDropped))
            assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []

    simulate(scenario)
    reasons = {(one.reason, one.queued >= 0) for one in drops}
    assert reasons == {("packet_too_large", False), ("packet_too_large", True)}


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("retain", [True, False])
@in_world()
async def test_qos_0_messages_that_are_too_large_are_counted(
    world: World, qos: int, *, retain: bool
) -> None:
    reader, writer = comes(world, "s", 100), comes(world, "p")
    await world.go(0.1)
    if not retain:
        reader.send(p.subscribe(1, ("t/#", 0)))
        await world.go(0.1)
    number = 1 if qos else None
    for size in (50, 200, 150):
        topic = f"t/{size}"
        writer.send(p.publish(topic, bytes(size), qos, number, retain=retain))
    await world.go(0.1)
    if retain:
        reader.send(p.subscribe(1, ("t/#", 0)))
        await world.go(0.1)
    drops = [one for one in world.disk.events() if isinstance(one, MessageDropped)]
    assert {(one.reason, one.filter) for one in drops} == {("packet_too_large", "t/#")}
    assert sum(one.count for one in drops) == 2
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []


@pytest.mark.parametrize("seed", range(40))
def test_the_size_of_a_packet_is_that_of_the_broker(seed: int) -> None:
    chance = random.Random(seed)
    state = SessionState("s")
    for number, identifier in enumerate(chance.choices([0, 1, 127, 128, 300, 70_000], k=4)):
        topic_filter = ["t/#", "t/ä", "#", "x"][number]
        held = SubscriptionState(topic_filter, 1, identifier=identifier)
        state.subscriptions[topic_filter] = held
    found = [
        held.identifier
        for topic_filter, held in state.subscriptions.items()
        if held.identifier and topic_filter != "x"
    ]
    block = p.prop(p.USER_PROPERTY, ("k", "v" * chance.choice([0, 100, 120, 130, 17_000])))
    block *= chance.randrange(2)
    payload = b"x" * chance.choice([0, 90, 120, 128, 16_300, 2_097_100])
    variant = PacketVariant(1, identifiers=tuple(sorted(found)))
    encoder = prepare_publishes(["t/ä".encode()], [payload], [block], variant)
    largest = single_event_rules.largest_packet(state, "t/ä", len(payload), len(block))
    assert [largest] == encoder.sizes == [len(encoder.render([1]))]
