"""Messages that expire in the queue of an offline client make room for others."""

from collections.abc import Iterable

import pytest
from harness import mqtt5_packets
from harness import packets as p
from harness.packets import Puback, Publish
from harness.plainaudit import violations

from eventstore.format.events import Expired, MessageDropped
from projections.state.waiting_queue import WaitingQueue
from simulation.fold import compare
from simulation.world import SimClient, World, in_world, simulate


def publish(
    client: SimClient, numbers: Iterable[int], seconds: int | None = None, topic: str = "a/b"
) -> None:
    """Publish at level 5, with an expiry or without."""
    properties = () if seconds is None else ((mqtt5_packets.MESSAGE_EXPIRY, seconds),)
    client.mqtt5 = False  # what follows is at level 5 already
    client.send(
        *(
            mqtt5_packets.publish(topic, b"%d" % number, 1, number, properties=properties)
            for number in numbers
        )
    )
    client.mqtt5 = True


@pytest.mark.parametrize("cache", [1 << 20, 0], ids=["at hand", "in the log"])
@pytest.mark.parametrize("topic_filter", ["a/b", "$share/g/a/b"])
def test_expired_messages_make_room_in_a_queue(topic_filter: str, cache: int) -> None:
    async def scenario() -> None:
        async with World(max_queued_messages=10, message_cache=cache).running() as world:
            reader = await world.connect("r", filters=[(topic_filter, 1)])
            reader.send(p.disconnect())
            await world.go(1)
            sender = await world.connect("d", mqtt5=True)
            publish(sender, range(1, 5), 3600)
            publish(sender, range(5, 10), 2)
            await world.go(5)
            for number in range(10, 15):
                publish(sender, [number])
                await world.go(0.1)
            assert len([packet for packet in sender.take() if isinstance(packet, Puback)]) == 14
            events = world.disk.events()
            assert not [event for event in events if isinstance(event, MessageDropped)]
            assert len([event for event in events if isinstance(event, Expired)]) == 1
            compare(world)
            back = await world.connect("r", present=True, mqtt5=True)
            found = [int(packet.payload) for packet in back.take() if isinstance(packet, Publish)]
            assert found == [1, 2, 3, 4, *range(10, 15)]
            back.send(*(p.puback(number) for number in range(1, 10)))
            await world.go(1)
            compare(world)
            assert not violations(world.disk.decoded())

    simulate(scenario)


@in_world(max_queued_messages=100)
async def test_a_queue_that_is_not_half_full_is_left_alone(world: World) -> None:
    reader = await world.connect("r", filters=[("a/b", 1)])
    reader.send(p.disconnect())
    await world.go(1)
    sender = await world.connect("d", mqtt5=True)
    publish(sender, range(1, 10), 2)
    await world.go(5)
    publish(sender, [10])
    await world.go(1)
    assert not world.disk.events(Expired)
    assert world.broker.node.state.sessions["r"].queued == 10


@pytest.mark.plain
@in_world(max_queued_messages=60)
async def test_thousands_of_queues_are_searched_some_in_each_turn(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    searched: list[int] = []
    expired = WaitingQueue.expired

    def counted(self: WaitingQueue, *args: int) -> list[int]:
        searched[-1] += 1
        return expired(self, *args)

    monkeypatch.setattr(WaitingQueue, "expired", counted)
    topics = [f"a/{number}" for number in range(40)]
    reader = await world.connect("r", filters=[(topic, 1) for topic in topics])
    reader.send(p.disconnect())
    await world.go(1)
    sender = await world.connect("d", mqtt5=True)
    searched.append(0)
    for number, topic in enumerate(topics, 1):
        publish(sender, [number], 2, topic)
    await world.go(5)
    for number in range(41, 46):
        searched.append(0)
        publish(sender, [number], None, "a/0")
        await world.go(0.1)
    assert max(searched[1:]) == 16
    # 16 of 40 have left, then the queues were less than half full.
    assert world.broker.node.state.sessions["r"].queued == 29
    compare(world)
    assert not violations(world.disk.decoded())


@pytest.mark.parametrize(("wait", "arrives"), [(0.4, True), (0.49, True), (1.6, False)])
@pytest.mark.parametrize("part_of_a_second", [0.01, 0.5, 0.95])
@in_world()
async def test_a_message_of_one_second_lives_for_about_a_second(
    world: World, part_of_a_second: float, wait: float, arrives: bool
) -> None:
    reader = await world.connect("r", filters=[("a/b", 1)])
    reader.send(p.disconnect())
    sender = await world.connect("d", mqtt5=True)
    second = world.broker.node.clock.time_ms() / 1000 % 1
    await world.go(2 + part_of_a_second - second)
    publish(sender, [1], 1)
    await world.go(wait)
    back = await world.connect("r", present=True, mqtt5=True)
    found = back.payloads()
    assert found == ([b"1"] if arrives else [])
