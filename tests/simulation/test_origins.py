"""Messages that a bridge of a foldmq brings are taken once, over new sessions and crashes."""

from typing import Any

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.plainaudit import audit_plainly, checked_records

from actors.maintenance import retention
from eventstore.format.destination_events import OriginTaken
from eventstore.format.events import MessagePublished
from eventstore.format.positions import from_runs
from protocol.mqtt.origin_properties import Origin, log_property, with_origin
from simulation.fold import compare
from simulation.log_cuts import cuts, publish_noise
from simulation.network import Client5
from simulation.world import World, in_world


@pytest.fixture(autouse=True)
def _small_checkpoints(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)


async def bridged(world: World, run: int = 7, *, log: str = "far") -> Client5:
    client = Client5(world)
    properties = ((p5.USER_PROPERTY, log_property(log, run)),)
    client.send(p5.connect("bridge", clean=True, properties=properties))
    await world.go(0.2)
    (connack,) = client.take()
    assert isinstance(connack, p5.Answer)
    assert (p5.USER_PROPERTY, ("foldmq-log", "sim 0")) in connack.properties
    return client


async def bring(
    world: World, client: Client5, *places: int, time_ms: int = 0, qos: int = 1
) -> None:
    """Publish messages with these positions, and wait for an acknowledgement of each."""
    for place in places:
        block = with_origin(b"", Origin(place, place, time_ms or place))
        client.send(p5.publish("t", str(place).encode(), qos, place, properties=block))
    await world.go(0.3)
    answers: list[Any] = client.take()
    assert [(each.kind, each.packet_id) for each in answers] == [(p.PUBACK, at) for at in places]


def taken(world: World) -> list[int]:
    """The positions of the messages that were taken."""
    events = world.disk.events(OriginTaken)
    return [place for event in events for place in from_runs(event.origins)]


def published(world: World) -> int:
    events = world.disk.events(MessagePublished)
    return sum(event.count for event in events if event.session == "bridge")


@in_world()
async def test_a_message_is_taken_once_over_new_sessions_and_crashes(world: World) -> None:
    reader = await world.connect("r", filters=[("t", 1)])
    client = await bridged(world)
    await bring(world, client, 11, 12, 13)
    for again in (False, True):
        client.drop()
        if again:
            await world.restart()
        client = await bridged(world)
        await bring(world, client, 12, 13, 14 + again)
    assert taken(world) == [11, 12, 13, 14, 15]
    assert published(world) == 5
    received = [each for each in reader.take() if isinstance(each, p.Publish)]
    assert [each.payload for each in received] == [b"11", b"12", b"13", b"14"]
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []
    compare(world)


@in_world()
async def test_its_readers_do_not_get_the_origin(world: World) -> None:
    reader = Client5(world)
    reader.send(p5.connect("r"), p5.subscribe(1, ("t", 1)))
    client = await bridged(world)
    await bring(world, client, 11)
    (message,) = [each for each in reader.take() if isinstance(each, p5.Publish)]
    assert message.properties == ()


@in_world()
async def test_another_run_and_a_restored_log_begin_anew(world: World) -> None:
    client = await bridged(world)
    await bring(world, client, 11, 12)
    await bring(world, client, 12, time_ms=99)  # the position once more, after a restore
    await bring(world, client, 12, time_ms=99)
    assert taken(world) == [11, 12, 12]
    client = await bridged(world, run=8)
    await bring(world, client, 12)
    assert taken(world) == [11, 12, 12, 12]


@pytest.mark.parametrize("apart", [0.0, 0.2])
@in_world()
async def test_a_message_that_is_refused_for_now_is_not_known_when_it_comes_again(
    world: World, *, apart: float
) -> None:
    full = {b"full"}

    async def send(client: Client5) -> list[Any]:
        for place, topic in ((11, "t"), (12, "full"), (13, "t"), (14, "t")):
            block = with_origin(b"", Origin(place, place, place))
            client.send(p5.publish(topic, b"%d" % place, 1, place, properties=block))
            await world.go(apart)
        await world.go(0.3)
        return [(each.packet_id, each.code) for each in client.take()]

    world.broker.node.publish_rules.lacks_key = lambda raw: raw in full
    for _ in range(2):
        client = await bridged(world)
        answers = await send(client)
        assert [code for _, code in answers] == [0, 0x97, 0x97, 0x97]
        assert [packet_id for packet_id, _ in answers] == [11, 12, 13, 14]
        assert taken(world) == [11]
        client.drop()
    full.clear()
    assert [code for _, code in await send(await bridged(world))] == [0, 0, 0, 0]
    assert taken(world) == [11, 12, 13, 14]
    assert published(world) == 4
    compare(world)


@in_world()
async def test_other_clients_may_have_the_property(world: World) -> None:
    client = Client5(world)
    client.send(p5.connect("c"))
    await world.go(0.2)
    client.take()
    await bring(world, client, 11)
    await bring(world, client, 11)
    assert taken(world) == []


@in_world(lambda: World(keep=0.0, keep_bytes=40_000))
async def test_a_cut_keeps_how_far_messages_were_taken(world: World) -> None:
    client = await bridged(world)
    await bring(world, client, 11, 12)
    noise = await world.connect("n")
    while not cuts(world):
        await publish_noise(world, noise, 20)
        await world.go(0.5)
    await world.restart()
    client = await bridged(world)
    await bring(world, client, 12, 13)
    assert taken(world)[-1:] == [13]
    assert world.broker.node.state.destinations.taken["bridge"].through == 13
    assert audit_plainly("sim", checked_records(world.disk.stream.history)) == []
    compare(world)
