"""The topics $SYS/broker/...: their receivers, times and content."""

import dataclasses
import math
import re

from harness import packets as p
from harness.packets import Publish

from actors.inspection.sys_topics import Counts, Load
from eventstore.format.events import MessageDropped, MessagePublished
from simulation.world import SimClient, World, in_world, simulate

NAMES = {
    *("version", "uptime", "heap/current", "heap/maximum", "bytes/received", "bytes/sent"),
    *(f"clients/{what}" for what in ("total", "connected", "active", "disconnected", "inactive")),
    *("clients/maximum", "clients/expired", "messages/received", "messages/sent"),
    *(f"publish/messages/{what}" for what in ("received", "sent", "dropped")),
    *("publish/bytes/received", "publish/bytes/sent", "messages/stored"),
    *("store/messages/count", "store/messages/bytes", "retained messages/count"),
    *("subscriptions/count", "shared_subscriptions/count"),
}
"""The topics of Mosquitto 2.0 below $SYS/broker/, without the averages in load/."""


def publishes(client: SimClient) -> list[Publish]:
    return [packet for packet in client.take() if isinstance(packet, Publish)]


def values(client: SimClient) -> dict[str, str]:
    """What came since the last time, by topic without its root; each topic once."""
    received = publishes(client)
    found = {
        packet.topic.removeprefix("$SYS/broker/"): packet.payload.decode() for packet in received
    }
    assert len(found) == len(received)
    return found


def reload(world: World, **values: float) -> None:
    broker = world.broker
    broker.reload(
        dataclasses.replace(broker.node.options, **values), broker.admission.authenticator
    )  # type: ignore[arg-type]


def subscribe(client: SimClient, *filters: str) -> None:
    client.send(p.subscribe(9, *((topic_filter, 1) for topic_filter in filters)))


@in_world()
async def test_a_subscriber_gets_the_current_values_as_retained_messages(world: World) -> None:
    client = await world.connect("c")
    await world.go(35)
    subscribe(client, "$SYS/broker/uptime", "$SYS/broker/clients/+")
    await world.go(0.1)
    suback, *received = client.take()
    assert isinstance(suback, p.Suback)
    assert all(isinstance(packet, Publish) for packet in received)
    assert {(packet.qos, packet.retain) for packet in received} == {(0, True)}
    topics = [packet.topic for packet in received]
    assert topics[0] == "$SYS/broker/uptime"
    assert sorted(topics[1:]) == [
        f"$SYS/broker/clients/{name}"
        for name in (
            "active",
            "connected",
            "disconnected",
            "expired",
            "inactive",
            "maximum",
            "total",
        )
    ]
    assert received[0].payload == b"35 seconds"


@in_world(sys_interval=7.0)
async def test_then_it_gets_changed_values_every_interval(world: World) -> None:
    client = await world.connect("c")
    subscribe(client, "$SYS/broker/uptime", "$SYS/broker/clients/total")
    await world.go(1)
    assert values(client)["clients/total"] == "1"
    await world.go(7)
    (only,) = publishes(client)
    assert (only.topic, only.qos, only.retain) == ("$SYS/broker/uptime", 0, False)
    await world.connect("another")
    await world.go(7)
    assert values(client) == {"uptime": "14 seconds", "clients/total": "2"}
    client.send(p.unsubscribe(10, "$SYS/broker/uptime"))
    await world.go(7)
    assert values(client) == {}


@in_world()
async def test_filters_that_begin_with_a_wildcard_do_not_match(world: World) -> None:
    client = await world.connect("c")
    subscribe(client, "#", "+/broker/uptime", "/#", "$SYSTEM/#", "$SYS/nothing/#")
    await world.go(25)
    assert publishes(client) == []
    subscribe(client, "$SYS/+/uptime")
    await world.go(0.1)
    # As in the last update to the subscribers of that time.
    assert values(client) == {"uptime": "20 seconds"}


@in_world()
async def test_overlapping_filters_of_a_client_give_one_copy_of_an_update(world: World) -> None:
    client = await world.connect("c")
    subscribe(client, "$SYS/#", "$SYS/broker/#", "$SYS/broker/uptime")
    await world.go(5)
    publishes(client)
    await world.go(10)
    assert values(client)["uptime"] == "10 seconds"


@in_world()
async def test_clients_cannot_publish_there(world: World) -> None:
    reader = await world.connect("reader", filters=[("$SYS/broker/uptime", 0)])
    reader.take()
    liar = await world.connect("liar")
    liar.send(p.publish("$SYS/broker/uptime", b"lie", 1, 1, retain=True))
    await world.go(1)
    assert publishes(reader) == []
    late = await world.connect("late", filters=[("$SYS/broker/uptime", 0)])
    assert "lie" not in {packet.payload.decode() for packet in late.received}  # type: ignore[union-attr]
    (dropped,) = world.disk.events(MessageDropped)
    assert dropped.reason == "reserved_topic"


@in_world(sys_interval=1.0)
async def test_nothing_of_it_is_in_the_log(world: World) -> None:
    client = await world.connect("c", filters=[("$SYS/#", 2)])
    before = len(world.disk.events())
    await world.go(30)
    assert len(publishes(client)) > 30
    assert len(world.disk.events()) == before
    assert not any(isinstance(event, MessagePublished) for event in world.disk.events())


@in_world()
async def test_a_client_that_was_away_gets_no_old_values_but_new_ones(world: World) -> None:
    client = await world.connect("c", filters=[("$SYS/broker/uptime", 1)])
    client.drop()
    await world.go(60)
    assert world.broker.node.state.sessions.frozen("c") is not None
    client = await world.connect("c", present=True)
    assert client.received == []
    await world.go(10)
    assert values(client) == {"uptime": "70 seconds"}


@in_world(sys_interval=0.0)
async def test_an_interval_of_nought_means_none(world: World) -> None:
    client = await world.connect("c", filters=[("$SYS/#", 0)])
    await world.go(60)
    assert client.received == publishes(client) == []


@in_world(sys_interval=10.0)
async def test_a_new_interval_counts_from_the_reload_on(world: World) -> None:
    client = await world.connect("c", filters=[("$SYS/broker/uptime", 0)])
    assert publishes(client)[0].payload == b"0 seconds"
    reload(world, sys_interval=3.0)
    await world.go(7)
    assert [packet.payload for packet in publishes(client)] == [b"3 seconds", b"6 seconds"]
    reload(world, sys_interval=0.0)
    await world.go(60)
    assert publishes(client) == []
    reload(world, sys_interval=100.0)
    await world.go(101)
    assert [packet.payload for packet in publishes(client)] == [b"167 seconds"]


@in_world()
async def test_queued_and_retained_messages_count_as_stored(world: World) -> None:
    away = await world.connect("away", filters=[("a", 1)])
    away.drop()
    client = await world.connect("c")
    await world.go(60)
    sent = [p.publish("a", b"12345", 1, n + 1) for n in range(10)]
    client.send(*sent, p.publish("b", b"1234567", 1, 11, retain=True))
    await world.go(5)
    client.take()
    subscribe(client, "$SYS/broker/store/#", "$SYS/broker/messages/stored")
    await world.go(1)
    found = {packet.topic: packet.payload for packet in publishes(client)}
    assert found == {
        "$SYS/broker/messages/stored": b"11",
        "$SYS/broker/store/messages/count": b"11",
        "$SYS/broker/store/messages/bytes": b"57",
    }


@in_world(sys_interval=1000.0)
async def test_the_figures_are_right(world: World) -> None:
    reader = await world.connect("reader", filters=[("t", 1), ("r", 0)])
    gone = await world.connect("gone", filters=[("t", 0)])
    gone.drop()
    await world.go(0.1)
    writer = await world.connect("writer")
    writer.send(
        p.publish("t", b"x", 0),
        p.publish("t", b"x", 1, 1),
        p.publish("t", b"x", 1, 2),
        p.publish("r", b"x", 1, 3, retain=True),
        p.publish("$SYS/x", b"x", 1, 4),
    )
    await world.go(1)
    assert len(publishes(reader)) == 4
    subscribe(writer, "$SYS/#")
    await world.go(1)
    found = values(writer)
    assert found["version"].startswith("foldmq version ")
    expected = {
        "clients/total": 3,
        "clients/connected": 2,
        "clients/active": 2,
        "clients/disconnected": 1,
        "clients/inactive": 1,
        "clients/maximum": 2,
        "clients/expired": 0,
        "publish/messages/received": 5,
        "publish/messages/sent": 4,
        "publish/messages/dropped": 1,
        "retained messages/count": 1,
        "subscriptions/count": 4,
        "shared_subscriptions/count": 0,
        # 3 CONNECT, 3 SUBSCRIBE, 5 PUBLISH
        "messages/received": 11,
        # 3 CONNACK, 3 SUBACK, 4 PUBLISH, 4 PUBACK
        "messages/sent": 14,
    }
    assert {name: found[name] for name in expected} == {
        name: str(value) for name, value in expected.items()
    }
    for name in found:
        shape = r"\d+\.\d\d" if name.startswith("load/") else r"\d+"
        if name not in ("version", "uptime"):
            assert re.fullmatch(shape, found[name]), name


@in_world()
async def test_the_names_are_all_those_of_mosquitto(world: World) -> None:
    reader = await world.connect("reader", filters=[("$SYS/#", 0)])
    await world.go(1)
    found = {name for name in values(reader) if not name.startswith("load/")}
    assert found == NAMES


def test_the_same_simulation_gives_the_same_values() -> None:
    told: list[list[tuple[str, bytes]]] = []

    async def scenario() -> None:
        async with World(sys_interval=2.0).running() as world:
            client = await world.connect("c", filters=[("$SYS/#", 0)])
            await world.go(20)
            received = [*client.received, *client.take()]
            told.append(
                [
                    (packet.topic, packet.payload)
                    for packet in received
                    if isinstance(packet, Publish)
                ]
            )

    simulate(scenario)
    simulate(scenario)
    assert told[0] == told[1]
    assert len(told[0]) > 60


def counts(publications: int) -> Counts:
    return Counts(*(publications if name == "publish__received" else 0 for name in Counts._fields))


def test_averages_approach_a_steady_rate_in_their_time() -> None:
    load = Load()
    for second in range(0, 61, 5):
        load.sample(1000.0 + second, counts(second * 2))
    found = dict(load.values())
    for name, minutes in (("1min", 1), ("5min", 5), ("15min", 15)):
        # Two in a second, begun one minute ago.
        assert found[f"load/publish/received/{name}"] == f"{120 * (1 - math.exp(-1 / minutes)):.2f}"
    assert found["load/publish/sent/1min"] == "0.00"
    for second in range(65, 10_000, 5):
        load.sample(1000.0 + second, counts(second * 2))
    found = dict(load.values())
    assert found["load/publish/received/15min"] == "120.00"
    assert len(found) == 3 * len(Counts._fields)


def test_averages_do_not_depend_on_the_interval() -> None:
    often, rarely = Load(), Load()
    for second in range(301):
        often.sample(float(second), counts(second))
    rarely.sample(0.0, counts(0))
    rarely.sample(300.0, counts(300))
    assert dict(often.values()) == dict(rarely.values())
