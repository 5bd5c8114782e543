"""``record_qos0``: messages at QoS 0 on some topics are in the log, and are delivered as before."""

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from harness import packets as p
from harness.anonymous import Anonymous
from harness.packets import Publish
from harness.plainaudit import violations

from actors.bridge import bridge_supervisor
from actors.limits.bridge_options import BridgeOptions
from eventstore.format.events import MessagePublished
from eventstore.format.records import decode_record
from protocol.nats.mapping import Mapping
from simulation.bridged_clients import ACCESS
from simulation.fold import compare
from simulation.natsserver import Got, SimLink, SimNatsServer
from simulation.world import SimClient, World, in_world, simulate


def recorded(world: World) -> list[tuple[str, list[str], int, bool]]:
    return [
        (event.session, [event.topics[at] for at in event.which] or event.topics * event.count,
         event.qos, event.retain)
        for _, data in sorted(world.disk.stream.history.items())
        for _, event in decode_record(_, data).events()
        if isinstance(event, MessagePublished)
    ]  # fmt: skip


def received(client: SimClient) -> list[tuple[str, bytes, int]]:
    return [
        (packet.topic, packet.payload, packet.qos)
        for packet in client.take()
        if isinstance(packet, Publish)
    ]


@pytest.mark.parametrize("burst", [True, False])
@in_world(record_qos0=("t/#",))
async def test_they_are_recorded_and_replayed(world: World, burst: bool) -> None:
    live = await world.connect("live", filters=[("#", 1)])
    offline = SimClient(world)
    offline.send(p.connect("o", clean=False), p.subscribe(1, ("t/#", 1)))
    await world.go(0.1)
    offline.drop()
    sender = await world.connect("s")
    wanted = []
    packets = []
    for number in range(9):
        topic = "other" if number % 3 == 1 else f"t/{number % 2}"
        wanted.append((topic, b"%d" % number, 0))
        packets.append(p.publish(topic, b"%d" % number, 0))
    if burst:
        sender.send(*packets)
    else:
        for packet in packets:
            sender.send(packet)
            await asyncio.sleep(0.002)
    await world.go(0.2)
    assert received(live) == wanted
    topics = [topic for _, found, _, _ in recorded(world) for topic in found]
    assert topics == [topic for topic, _, _ in wanted if topic != "other"]
    assert {(name, qos, retain) for name, _, qos, retain in recorded(world)} == {("s", 0, False)}
    reader = await world.connect("r", filters=[("$replay/all/#", 1)])
    await world.go(0.2)
    assert received(reader) == [one for one in wanted if one[0] != "other"]
    sender.send(p.publish("t/live", b"9", 0))
    await world.go(0.2)
    assert received(reader) == [("t/live", b"9", 0)]
    again = SimClient(world)
    again.send(p.connect("o", clean=False))
    await world.go(0.2)
    assert received(again) == []
    history = sorted(world.disk.stream.history.items())
    assert not violations([decode_record(at, data) for at, data in history])
    compare(world)


@in_world(record_qos0=("t/#",))
async def test_deliveries_do_not_wait_for_the_disk(world: World) -> None:
    live = await world.connect("live", filters=[("t/#", 1)])
    sender = await world.connect("s")
    await world.go(0.1)
    world.log.hold()
    sender.send(p.publish("t/a", b"x", 0))
    await world.go(0.1)
    assert received(live) == [("t/a", b"x", 0)]
    world.log.release()
    await world.go(0.1)
    assert [found for _, found, _, _ in recorded(world)] == [["t/a"]]


def test_messages_from_nats_are_recorded_too(monkeypatch: pytest.MonkeyPatch) -> None:
    nats = SimNatsServer(random.Random(1))

    async def open_link(_access: object, **callbacks: Callable[..., None]) -> SimLink:
        return SimLink(nats, callbacks)

    monkeypatch.setattr(bridge_supervisor.BatchClient, "open", open_link)

    async def whole() -> None:
        world = World(record_qos0=("t/#",))
        world.bridge = BridgeOptions(Mapping())
        async with world.running():
            bridge = world.broker.bridge
            assert bridge is not None
            await bridge.start(ACCESS)
            live = await world.connect("live", filters=[("#", 1)])
            await world.go(0.5)
            for subject, payload in (("t.a", b"1"), ("other", b"2"), ("t.b", b"3")):
                nats.publish(Got(subject, "", b"", payload))
            await world.go(0.5)
            wanted = [("t/a", b"1", 0), ("other", b"2", 0), ("t/b", b"3", 0)]
            assert received(live) == wanted
            assert [found for _, found, _, _ in recorded(world)] == [["t/a"], ["t/b"]]
            nats.forget()

    simulate(whole)


@in_world(record_qos0=("t/#",))
async def test_a_reload_applies_it(world: World) -> None:
    sender = await world.connect("s")
    sender.send(p.publish("t/a", b"1", 0), p.publish("u/a", b"2", 0))
    await world.go(0.1)
    broker = world.broker
    broker.reload(replace(broker.node.options, record_qos0=("u/#",)), Anonymous())
    sender.send(p.publish("t/a", b"3", 0), p.publish("u/a", b"4", 0))
    await world.go(0.1)
    assert [found for _, found, _, _ in recorded(world)] == [["t/a"], ["u/a"]]


@in_world()
async def test_without_the_setting_nothing_is_recorded(world: World) -> None:
    live = await world.connect("live", filters=[("t/#", 1)])
    sender = await world.connect("s")
    sender.send(p.publish("t/a", b"x", 0))
    await world.go(0.1)
    assert received(live) == [("t/a", b"x", 0)]
    assert recorded(world) == []
