"""Work for crowds is done in steps: of receivers, sessions, connections, timers, topics."""

import asyncio
import random
from collections.abc import Awaitable, Callable
from typing import Any

import orjson
import pytest
from harness import mqtt5_packets as p5
from harness import packets as p

from actors.broker import broker as broker_module
from actors.broker import session_registry
from actors.inspection import sys_topics
from actors.limits.bridge_options import BridgeOptions
from actors.maintenance import recovery
from actors.routing.router import Router
from actors.session import node_context
from actors.session.node_context import NodeContext
from eventstore.format.event_parsing import LogEvent
from eventstore.format.events import RetainedExpired, SessionClosed, WillFired
from eventstore.nats.batch_client import BatchClient
from eventstore.nats.connection import ConnectionOptions
from protocol.nats.mapping import Mapping
from simulation.checking import check_promises
from simulation.fold import compare
from simulation.natsserver import Got, SimLink, SimNatsServer
from simulation.network import SimClient
from simulation.partitions import make_partitions, name_in
from simulation.permission_worlds import OPEN, permit
from simulation.world import World, in_world, simulate, ticking

pytestmark = pytest.mark.plain

CROWD = 200
"""Sessions that subscribe to the same topic, in the index only."""
STEP = 20
"""Subscriptions evaluated in a step."""
LIMIT, MANY = 8, 30
"""What a step does at most where a test sets it, and how much there is to do."""
WILL = p.Will("wills/c", b"gone", 1)


def add_crowd(router: Router, topic_filter: str) -> None:
    """Let many sessions subscribe to a filter at QoS 0; each step of a match is a turn of its own.

    They are offline, so messages of QoS 0 cost them nothing.
    """
    for number in range(CROWD):
        router.subscribe(f"crowd{number}", topic_filter, 0)
    router.evaluated_at_once = STEP
    router.clock = ticking()


def remove_crowd(router: Router) -> None:
    for number in range(CROWD):
        router.remove_session(f"crowd{number}")


async def largest_step(
    read: Callable[[], int], during: Awaitable[object], monkeypatch: pytest.MonkeyPatch
) -> int:
    """Return by how much a value changes at most in an iteration of the event loop."""
    loop: Any = asyncio.get_running_loop()
    run_once = loop._run_once
    before, most = read(), 0

    def observed() -> None:
        nonlocal before, most
        run_once()
        now = read()
        most, before = max(most, abs(now - before)), now

    with monkeypatch.context() as patch:
        patch.setattr(loop, "_run_once", observed)
        await during
    return most


class RawClient(SimClient):
    """A client that is sent bytes of MQTT 5 as they are, and reads nothing."""

    def receive(self, data: bytes) -> None:
        """Ignore what comes."""


async def lose(world: World, client: SimClient) -> None:
    client.drop()


async def kick(world: World, client: SimClient) -> None:
    request = {"do": "kick", "by": "ann", "client": "c"}
    await world.broker.inspection.inspector.ask_for("change", request)


async def remove(world: World, client: SimClient) -> None:
    request = {"do": "remove_sessions", "by": "ann", "clients": ["c"]}
    await world.broker.inspection.inspector.ask_for("change", request)


async def take_over(world: World, client: SimClient) -> None:
    await world.connect("c")


async def start_over(world: World, client: SimClient) -> None:
    await world.connect("c", clean=True)


@pytest.mark.parametrize("end", [lose, kick, remove, take_over, start_over])
@in_world()
async def test_the_topic_of_a_will_is_matched_in_steps(
    world: World, end: Callable[..., Any]
) -> None:
    reader = await world.connect("r", filters=[("wills/#", 1)])
    client = await world.connect("c", filters=[("t", 1)], will=WILL)
    await world.go(2)
    add_crowd(world.broker.node.router, "wills/#")
    parts = world.broker.kernel.parts
    await end(world, client)
    await world.go(2)
    assert world.broker.kernel.parts - parts >= CROWD // STEP - 1
    assert reader.payloads() == [b"gone"]
    fired = world.disk.events(WillFired)
    assert fired == [WillFired("c")]
    remove_crowd(world.broker.node.router)
    compare(world)


@in_world()
async def test_an_orderly_end_matches_no_will(world: World) -> None:
    client = await world.connect("c", will=WILL)
    client.send(p.disconnect())
    await world.go(1)
    assert b"wills/c" not in world.broker.node.router.routes


@in_world()
async def test_a_will_that_is_due_is_matched_in_steps(world: World) -> None:
    reader = await world.connect("r", filters=[("wills/#", 1)])
    client = RawClient(world)
    will = p5.Will("wills/c", b"gone", 1, properties=((p5.WILL_DELAY, 5),))
    session_expiry = ((0x11, 1000),)
    client.send(p5.connect("c", clean=False, properties=session_expiry, will=will))
    await world.go(2)
    client.drop()
    await world.go(2)
    add_crowd(world.broker.node.router, "wills/#")
    parts = world.broker.kernel.parts
    await world.go(6)
    assert world.broker.kernel.parts - parts >= CROWD // STEP - 1
    assert reader.payloads() == [b"gone"]
    remove_crowd(world.broker.node.router)
    compare(world)


@in_world()
async def test_a_restart_publishes_wills_in_steps_and_before_anybody_connects(world: World) -> None:
    await world.connect("r", filters=[("wills/#", 1)])
    await world.connect("c", filters=[("t", 1)], will=WILL)
    await world.go(1)
    await world.restart()
    reader = await world.connect("r", present=True)
    await world.go(1)
    assert reader.payloads() == [b"gone"]
    await check_promises(world)


@in_world()
async def test_ends_of_connections_are_recorded_in_steps_after_a_crash(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(recovery, "_ENDED_AT_ONCE", LIMIT)
    wills = {f"c{number}": p.Will(f"wills/{number}") for number in range(1, MANY, 2)}
    for number in range(MANY):
        await world.connect(f"c{number}", will=wills.get(f"c{number}"))
    await world.connect("r", filters=[("wills/#", 0)])
    await world.crash()
    ended = 0
    emit = NodeContext.emit

    def noted(node: NodeContext, event: LogEvent, *rest: Any) -> int:
        nonlocal ended
        # Sessions with a will get a message to end it: actors whose turn is split.
        ended += isinstance(event, SessionClosed) and event.session not in wills
        return emit(node, event, *rest)

    monkeypatch.setattr(NodeContext, "emit", noted)
    assert await largest_step(lambda: ended, world.start(), monkeypatch) == LIMIT // 2
    ends = world.disk.events(SessionClosed)
    # Those without a will come first, each group in its order.
    assert [end.session for end in ends] == [
        *(f"c{number}" for number in range(0, MANY, 2)),
        "r",
        *wills,
    ]


def test_messages_from_nats_are_matched_in_steps_and_keep_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    nats = SimNatsServer(random.Random(1))

    async def open_link(_access: ConnectionOptions, **callbacks: Any) -> SimLink:
        return SimLink(nats, callbacks)

    monkeypatch.setattr(BatchClient, "open", open_link)

    async def scenario() -> None:
        world = World()
        world.bridge = BridgeOptions(Mapping(), qos=1)
        async with world.running():
            bridge = world.broker.bridge
            assert bridge is not None
            await bridge.start(ConnectionOptions(urls=("nats://sim",)))
            reader = await world.connect("r", filters=[("in/#", 1)])
            await world.go(2)
            add_crowd(world.broker.node.router, "in/a")
            parts = world.broker.kernel.parts
            for number in range(200):
                nats.publish(Got(f"in.{'ab'[number % 2]}", "", b"", b"%d" % number))
            await world.go(5)
            assert world.broker.kernel.parts - parts >= CROWD // STEP - 1
            assert reader.payloads() == [b"%d" % number for number in range(200)]
            await bridge.stop()

    simulate(scenario)


def test_messages_of_other_brokers_are_matched_in_steps_and_keep_their_order() -> None:
    async def scenario() -> None:
        worlds = make_partitions(2)
        for world in worlds:
            await world.start()
        here, there = worlds
        reader = await there.connect(name_in(worlds, 1), filters=[("in/#", 0)])
        writer = await here.connect(name_in(worlds, 0))
        await there.go(2)
        add_crowd(there.broker.node.router, "in/a")
        parts = there.broker.kernel.parts
        writer.send(*(p.publish(f"in/{'ab'[n % 2]}", b"%d" % n) for n in range(200)))
        await there.go(5)
        assert there.broker.kernel.parts - parts >= CROWD // STEP - 1
        assert reader.payloads() == [b"%d" % number for number in range(200)]
        for world in worlds:
            await world.crash()

    simulate(scenario)


@in_world()
async def test_retained_messages_expire_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker_module, "_RETAINED_AT_ONCE", LIMIT)
    client = RawClient(world)
    client.send(p5.connect("c"))
    await world.go(2)
    expiry = ((p5.MESSAGE_EXPIRY, 10),)
    client.send(
        *(p5.publish(f"r/{number}", b"x", retain=True, properties=expiry) for number in range(MANY))
    )
    await world.go(5)
    retained = world.broker.node.state.retained
    assert len(retained) == MANY
    assert await largest_step(lambda: len(retained), world.go(8), monkeypatch) == LIMIT
    assert len(retained) == 0
    await world.go(1)
    events = world.disk.events(RetainedExpired)
    assert [len(event.topics) for event in events] == [8, 8, 8, 6]
    compare(world)


@in_world()
async def test_changed_permissions_are_applied_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_context, "_APPLIED_AT_ONCE", LIMIT)
    for number in range(MANY):
        await world.connect(f"c{number}", filters=[("t", 1)])
    connections = [*world.broker.admission.connections]

    def denied() -> int:
        return sum(connection.access is not None for connection in connections)

    permit(world, OPEN + "[[deny]]\nsubscribe = ['t']\n")
    assert denied() == LIMIT
    assert await largest_step(denied, world.go(0.1), monkeypatch) == LIMIT
    assert denied() == MANY


@in_world()
async def test_idle_sessions_are_frozen_in_steps(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session_registry, "_NOTIFIED_AT_ONCE", LIMIT)
    clients = [await world.connect(f"c{number}") for number in range(MANY)]
    await world.go(5)
    live = world.broker.node.state.sessions.live
    assert len(live) == MANY
    for client in clients:
        client.send(p.disconnect())
    assert await largest_step(lambda: len(live), world.go(4), monkeypatch) == LIMIT
    assert not live


@in_world(sys_interval=5.0)
async def test_subscribers_of_statistics_are_found_and_served_in_steps(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sys_topics, "_FOUND_AT_ONCE", LIMIT)
    monkeypatch.setattr(sys_topics, "_NOTIFIED_AT_ONCE", 2)
    clients = [
        await world.connect(f"c{number}", filters=[("$SYS/broker/uptime", 0)])
        for number in range(MANY)
    ]
    await world.go(6)
    for client in clients:
        client.take()

    def served() -> int:
        return sum(any(isinstance(packet, p.Publish) for packet in c.received) for c in clients)

    assert await largest_step(served, world.go(5), monkeypatch) == 2
    assert served() == MANY
    for client in clients:
        assert len(client.payloads()) == 1


def test_the_members_of_a_silent_log_are_disconnected_in_steps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        here, there = make_partitions(2)
        await here.start()
        await there.start()
        name = name_in([here, there], 1)
        await there.connect(name, filters=[("$share/own/t", 1)])
        await here.go(2)  # it is heard
        try:
            exchange, groups = here.broker.node.exchange, here.broker.node.router.groups
            other = there.broker.node.options.node
            assert exchange is not None
            names = [f"$share/g{number}/t" for number in range(4 * MANY)]
            for name in names:
                if not exchange.home_of(name):
                    exchange._shares.log_joined(name, other)
                    groups.report(name, other, 1, 10, 0)
            assert len(groups.of_log(other)) > MANY
            there.kill()
            most = await largest_step(lambda: len(groups.of_log(other)), here.go(5), monkeypatch)
            assert 0 < most <= LIMIT
            assert not groups.of_log(other)
        finally:
            await here.crash()
            await there.crash()

    simulate(scenario)


def test_reports_of_another_log_are_applied_in_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    parts, members = 200, 10

    async def scenario() -> None:
        here, there = make_partitions(2)
        await here.start()
        await there.start()
        try:
            exchange, groups = here.broker.node.exchange, here.broker.node.router.groups
            own, other = (one.broker.node.options.node for one in (here, there))
            assert exchange is not None
            names = [f"$share/g{number}/t" for number in range(2 * parts)]
            names = [name for name in names if not exchange.home_of(name)]
            for name in names:
                exchange._shares.log_joined(name, other)
            offers = [(name, members, 7) for name in names]
            through = {own: here.broker.node.journal.last}

            def online() -> int:
                return sum(len(groups.find(name).online) for name in names)

            async def hear() -> None:
                exchange.reported(other, orjson.dumps((0, through, offers)))
                await here.go(1)

            most = await largest_step(online, hear(), monkeypatch)
            assert online() == len(names) * members
            assert len(names) * members > 1000 > 300 > most
        finally:
            await here.crash()
            await there.crash()

    simulate(scenario)


@pytest.mark.parametrize("qos", [0, 1])
@pytest.mark.parametrize("publisher", ["itself", "another"])
@in_world()
async def test_messages_before_an_unsubscribe_arrive_in_steps_too(
    world: World, publisher: str, qos: int
) -> None:
    """The deliveries of a message to many are made in the turn of the UNSUBSCRIBE, but behind it.

    QoS 0 allows that the message is lost; it is not, as it is not with few receivers.
    """
    world.broker.node.turn_work.at_once = 1
    other = await world.connect("other")
    clients = [
        await world.connect(f"c{number}", filters=[("t", qos), ("u", qos)]) for number in range(6)
    ]
    for number, client in enumerate(clients):
        sent = [
            p.publish(topic, b"%d%d" % (number, at), qos, 10 + at if qos else None)
            for at, topic in enumerate("tut")
        ]
        sender = client if publisher == "itself" else other
        sender.send(*sent)
        client.send(p.unsubscribe(5, "t"), p.unsubscribe(6, "u"))
        await world.go(1)
        wanted = [b"%d%d" % (number, at) for at in range(3)]
        received = client.take()
        got = [packet for packet in received if isinstance(packet, p.Publish)]
        for topic, some in (("t", wanted[::2]), ("u", wanted[1:2])):
            assert [packet.payload for packet in got if packet.topic == topic] == some
        assert [packet for packet in received if isinstance(packet, p.Unsuback)] == [
            p.Unsuback(5),
            p.Unsuback(6),
        ]
        for one in clients[number + 1 :]:
            assert sorted(one.payloads()) == wanted
    assert not any(client.payloads() for client in clients)
