"""The gate: output waits for the disk exactly as long as it depends on it."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from harness import packets as p
from harness.packets import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel, Suback, Unsuback

from simulation.world import SimClient, World, in_world

Script = Callable[[World], Awaitable[tuple[SimClient, list[p.Packet]]]]
"""Acts while the log is held; returns the expected output of each client afterwards."""


async def connack(world: World) -> tuple[SimClient, list[p.Packet]]:
    world.log.hold()
    client = SimClient(world)
    client.send(p.connect("new", clean=False))
    return client, [Connack(0, session_present=False)]


async def connack_of_a_resumed_session(world: World) -> tuple[SimClient, list[p.Packet]]:
    first = await world.connect("c")
    first.send(p.disconnect())
    await world.go(0.1)
    world.log.hold()
    client = SimClient(world)
    client.send(p.connect("c", clean=False))
    return client, [Connack(0, session_present=True)]


async def suback(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c")
    world.log.hold()
    client.send(p.subscribe(3, ("a", 1)))
    return client, [Suback(3, (1,))]


async def unsuback(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c", filters=[("a", 1)])
    world.log.hold()
    client.send(p.unsubscribe(3, "a"))
    return client, [Unsuback(3)]


async def puback(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c")
    world.log.hold()
    client.send(p.publish("a", b"x", 1, 7), p.publish("a", b"y", 1, 8))
    return client, [Puback(7), Puback(8)]


async def pubrec(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c")
    world.log.hold()
    client.send(p.publish("a", b"x", 2, 7))
    return client, [Pubrec(7)]


async def pubcomp(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c")
    client.send(p.publish("a", b"x", 2, 7))
    await world.go(0.1)
    client.take()
    world.log.hold()
    client.send(p.pubrel(7))
    return client, [Pubcomp(7)]


async def delivery_at_qos_1(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c", filters=[("a", 1)])
    other = await world.connect("d")
    world.log.hold()
    other.send(p.publish("a", b"x", 1, 7))
    return client, [Publish("a", b"x", 1, 1)]


async def delivery_at_qos_2(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c", filters=[("a", 2)])
    other = await world.connect("d")
    other.send(p.publish("a", b"x", 2, 7))
    await world.go(0.1)
    assert client.take() == []
    world.log.hold()
    other.send(p.pubrel(7))
    return client, [Publish("a", b"x", 2, 1)]


async def pubrel(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c", filters=[("a", 2)])
    client.send(p.publish("a", b"x", 2, 7), p.pubrel(7))
    await world.go(0.1)
    client.take()
    world.log.hold()
    client.send(p.pubrec(1))
    return client, [Pubrel(1)]


async def queued_messages(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c", filters=[("a", 1)])
    client.send(p.disconnect())
    other = await world.connect("d")
    other.send(p.publish("a", b"x", 1, 7), p.publish("a", b"y", 1, 8))
    await world.go(0.1)
    world.log.hold()
    client = SimClient(world)
    client.send(p.connect("c", clean=False))
    return client, [
        Connack(0, session_present=True),
        Publish("a", b"x", 1, 1),
        Publish("a", b"y", 1, 2),
    ]


async def retained_messages(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c")
    client.send(p.publish("a", b"x", 1, 7, retain=True))
    client.send(p.publish("b", b"y", 0, retain=True))
    await world.go(0.1)
    client.take()
    world.log.hold()
    client.send(p.subscribe(3, ("+", 1)))
    return client, [
        Suback(3, (1,)),
        Publish("b", b"y", 0, retain=True),
        Publish("a", b"x", 1, 1, retain=True),
    ]


async def a_will(world: World) -> tuple[SimClient, list[p.Packet]]:
    client = await world.connect("c", filters=[("w", 1)])
    other = await world.connect("d", will=p.Will("w", b"gone", 1))
    world.log.hold()
    other.drop()
    return client, [Publish("w", b"gone", 1, 1)]


@pytest.mark.parametrize(
    "script",
    [
        connack, connack_of_a_resumed_session, suback, unsuback, puback, pubrec, pubcomp,
        delivery_at_qos_1, delivery_at_qos_2, pubrel, queued_messages, retained_messages, a_will,
    ],
)  # fmt: skip
@in_world()
async def test_it_waits_for_the_disk(world: World, script: Script) -> None:
    client, expected = await script(world)
    await world.go(3)
    assert client.take() == []
    assert world.log.waiting
    world.log.release()
    await world.go(0.1)
    assert client.take() == expected


@pytest.mark.parametrize("kept", [0, 1])
@in_world()
async def test_unacknowledged_messages_may_survive_a_crash(world: World, kept: int) -> None:
    await world.connect("c", filters=[("a", 1)])
    other = await world.connect("d")
    world.log.hold()
    other.send(p.publish("a", b"x", 1, 7))
    await world.calm()
    assert other.take() == []
    await world.restart(keep=kept)
    client = await world.connect("c", present=True)
    expected = [Publish("a", b"x", 1, 1, dup=True)] if kept else []
    assert client.take() == expected


@in_world()
async def test_qos_0_passes_while_the_disk_is_waited_for(world: World) -> None:
    client = await world.connect("c", filters=[("#", 1)])
    other = await world.connect("d")
    world.log.hold()
    other.send(p.publish("a", b"one", 1, 7), p.publish("a", b"zero"))
    await world.calm()
    assert client.take() == [Publish("a", b"zero")]
    world.log.release()
    await world.calm()
    assert client.take() == [Publish("a", b"one", 1, 1)]


@pytest.mark.parametrize("turns", [1, 2])
@in_world()
async def test_qos_0_does_not_pass_the_connack_or_the_suback(world: World, turns: int) -> None:
    other = await world.connect("d")
    world.log.hold()
    client = SimClient(world)
    client.send(p.connect("c", clean=True))
    await world.calm()
    client.send(p.subscribe(5, ("a", 0)), p.pingreq())
    if turns == 2:
        await world.calm()
    other.send(p.publish("a", b"zero"))
    await world.calm()
    assert client.take() == []
    world.log.release()
    await world.go(0.1)
    other.send(p.publish("a", b"more"))
    await world.calm()
    received = client.take()
    assert received[0] == Connack(0)
    assert received.index(Suback(5, (0,))) < received.index(Publish("a", b"zero"))
    assert received[-1] == Publish("a", b"more")
    assert p.Pingresp() in received


@in_world()
async def test_pings_are_answered_while_the_disk_is_waited_for(world: World) -> None:
    client = await world.connect("c")
    world.log.hold()
    client.send(p.publish("a", b"x", 1, 1))
    await world.calm()
    client.send(p.pingreq())
    await world.go(0.1)
    assert client.take() == [p.Pingresp()]


@in_world()
async def test_records_gather_while_others_are_on_their_way(world: World) -> None:
    client = await world.connect("c")
    before = len(world.disk.records)
    world.log.hold()
    for number in range(1, 101):
        client.send(p.publish("a", b"x", 1, number))
        await world.calm()
    world.log.release()
    await world.go(0.1)
    assert client.take() == [Puback(number) for number in range(1, 101)]
    assert len(world.disk.records) - before <= 4


@in_world()
async def test_input_is_paused_while_too_much_waits(world: World) -> None:
    client = await world.connect("c")
    world.log.hold()
    for number in range(1, 60):
        client.send(p.publish("a", bytes(1_000_000), 1, number))
        await asyncio.sleep(0)
    await world.calm()
    assert client.transport.arrived
    assert sum(len(one.data) for one in world.broker.node.journal.pending) < 40_000_000
    world.log.release()
    await world.go(1)
    assert client.take() == [Puback(number) for number in range(1, 60)]
