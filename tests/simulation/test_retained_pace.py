"""Pictures that replace each other at QoS 0: all are delivered, and few are recorded."""

from harness import packets as p
from harness.packets import Publish

from actors.node.retained_pace import LARGE
from actors.session.session_messages import Publication
from eventstore.format.events import MessagePublished
from simulation.fold import compare, fold
from simulation.network import SimClient
from simulation.world import World, in_world

TOPIC = "camera/jpg"
SIZE = 4 * LARGE
"""Recorded every four seconds."""


def picture(number: int) -> bytes:
    return b"%06d" % number * (SIZE // 6)


def show(camera: SimClient, number: int, qos: int = 0) -> None:
    camera.send(p.publish(TOPIC, picture(number), qos, number if qos else None, retain=True))


async def film(world: World, camera: SimClient, count: int, first: int = 1) -> None:
    """Five pictures a second."""
    for number in range(first, first + count):
        show(camera, number)
        await world.go(0.2)


def recorded(world: World) -> int:
    return sum(
        isinstance(event, MessagePublished) and event.retain for event in world.disk.events()
    )


async def newest(world: World, name: str) -> list[bytes]:
    """What a new subscriber gets."""
    client = await world.connect(name, clean=True, filters=[("camera/#", 1)])
    found = client.payloads() or [
        packet.payload for packet in client.received if isinstance(packet, Publish)
    ]
    client.drop()
    await world.go(0.1)
    return found


@in_world()
async def test_all_are_delivered_and_one_in_twenty_is_recorded(world: World) -> None:
    viewer = await world.connect("viewer", filters=[("camera/#", 1)])
    camera = await world.connect("camera")
    await film(world, camera, 100)
    assert viewer.payloads() == [picture(number) for number in range(1, 101)]
    assert 4 <= recorded(world) <= 7
    assert await newest(world, "late") == [picture(100)]
    await world.go(6)
    compare(world)
    (kept,) = fold(world.disk.decoded()).retained.all()
    assert kept.payload == picture(100)
    assert not world.broker.node.state.retained.unrecorded


@in_world()
async def test_the_bridge_and_other_observers_get_all_of_them(world: World) -> None:
    class Observer:
        """Notes what a bridge would pass on."""

        def __init__(self) -> None:
            self.payloads: list[bytes] = []

        def published(self, publication: Publication) -> None:
            assert not publication.taken
            self.payloads += publication.batch.payloads

    observer = Observer()
    world.broker.node.add_observer(observer)
    camera = await world.connect("camera")
    await film(world, camera, 12)
    assert observer.payloads == [picture(number) for number in range(1, 13)]


@in_world()
async def test_the_end_of_the_connection_records_the_newest(world: World) -> None:
    camera = await world.connect("camera", clean=True)
    await film(world, camera, 7)
    camera.send(p.disconnect())
    await world.go(0.5)
    await world.restart()
    assert await newest(world, "late") == [picture(7)]
    compare(world)


@in_world()
async def test_a_stop_in_good_order_records_the_newest(world: World) -> None:
    camera = await world.connect("camera")
    await film(world, camera, 7)
    await world.drain()
    await world.start()
    assert await newest(world, "late") == [picture(7)]


@in_world()
async def test_a_crash_leaves_one_that_was_recorded(world: World) -> None:
    camera = await world.connect("camera")
    await film(world, camera, 7)
    await world.restart()
    assert await newest(world, "late") == [picture(1)]
    compare(world)


@in_world()
async def test_a_recorded_message_takes_the_place_of_an_unrecorded_one(world: World) -> None:
    camera = await world.connect("camera")
    other = await world.connect("other")
    await film(world, camera, 3)
    show(other, 50, qos=1)
    await world.go(0.1)
    assert await newest(world, "late") == [picture(50)]
    await world.go(9)
    assert await newest(world, "later") == [picture(50)]
    compare(world)


@in_world()
async def test_a_cleared_topic_stays_clear(world: World) -> None:
    camera = await world.connect("camera")
    await film(world, camera, 3)
    camera.send(p.publish(TOPIC, b"", 0, None, retain=True))
    await world.go(9)
    assert await newest(world, "late") == []
    compare(world)


@in_world()
async def test_a_checkpoint_repeats_what_is_recorded(world: World) -> None:
    camera = await world.connect("camera")
    await film(world, camera, 3)
    await world.broker.node.retention.checkpoint()
    assert await newest(world, "late") == [picture(3)]
    await world.go(9)
    compare(world)
    (kept,) = fold(world.disk.decoded()).retained.all()
    assert kept.payload == picture(3)


@in_world()
async def test_small_messages_are_all_recorded(world: World) -> None:
    sensor = await world.connect("sensor")
    for number in range(20):
        sensor.send(p.publish("t", b"%d" % number, 0, None, retain=True))
        await world.go(0.2)
    assert recorded(world) == 20
