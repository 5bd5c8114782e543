"""The packets of many clients in one turn of the event loop are decided as columns, in one pass."""

import asyncio
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import orjson
import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.packets import Puback, Publish

from actors.connection.connection import Connection
from actors.fast_path.fast_path import FastPath, is_bulk
from actors.kernel.kernel import Kernel
from actors.session.session_messages import Publication
from eventstore.format.records import header_of
from projections.state.digests import session_digest
from simulation.jetstream import SimNats
from simulation.world import SimClient, World, in_world, simulate

SETTLED = 3.0


def written(world: World) -> list[str]:
    """The types of the events of the log, as they are written."""
    found = []
    for data in world.disk.records:
        header = orjson.loads(header_of(data))
        found += [event["e"] for event in header["events"]]
    return found


async def connected(
    world: World, count: int, qos: int, mqtt5: Callable[[], bool] = lambda: False
) -> tuple[list[SimClient], list[SimClient]]:
    """Publishers, and for each one subscriber; the topics are known, the clients no newcomers."""
    subscribers = [
        await world.connect(f"s{at}", filters=[(f"t/{at}", qos)], mqtt5=mqtt5())
        for at in range(count)
    ]
    publishers = [await world.connect(f"p{at}", mqtt5=mqtt5()) for at in range(count)]
    for at, client in enumerate(publishers):
        client.send(p.publish(f"t/{at}", b"first", 0))
    await world.go(SETTLED)
    for client in (*publishers, *subscribers):
        client.take()
    return publishers, subscribers


@pytest.mark.parametrize("qos", [1, 2])
@in_world()
async def test_packets_of_many_clients_are_one_event_of_each_kind(world: World, qos: int) -> None:
    publishers, subscribers = await connected(world, 20, qos)
    before = len(written(world))
    for at, client in enumerate(publishers):
        client.send(p.publish(f"t/{at}", b"%d" % at, qos, 5))
    await world.go(1)
    if qos == 2:
        for client in publishers:
            assert client.take() == [p.Pubrec(5)]
            client.send(p.pubrel(5))
        await world.go(1)
    answer = p.Puback(5) if qos == 1 else p.Pubcomp(5)
    assert all(client.take() == [answer] for client in publishers)
    for at, client in enumerate(subscribers):
        (got,) = client.take()
        assert isinstance(got, Publish)
        assert (got.topic, got.payload, got.qos) == (f"t/{at}", b"%d" % at, qos)
        if qos == 1:
            client.send(p.puback(got.packet_id or 0))
        else:
            client.send(p.pubrec(got.packet_id or 0))
    await world.go(1)
    if qos == 2:
        for client in subscribers:
            (released,) = client.take()
            assert isinstance(released, p.Pubrel)
            client.send(p.pubcomp(released.packet_id))
        await world.go(1)
    kinds = {1: ["TurnPublished", "TurnDelivered", "TurnAcked"]}.get(
        qos, ["TurnPublished", "TurnReleased", "TurnDelivered", "TurnAcked", "TurnAcked"]
    )
    assert written(world)[before:] == kinds
    for at in range(20):
        assert not world.broker.node.state.sessions[f"s{at}"].inflight


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_world()
async def test_a_message_to_many_receivers_is_delivered_in_steps_and_in_order(
    world: World, qos: int
) -> None:
    """What the client sent behind it does not overtake it, whichever way it takes."""
    names = [f"s{at}" for at in range(60)]
    receivers = [await world.connect(name, filters=[("t", 2)]) for name in names]
    publisher = await world.connect("p")
    publisher.send(p.publish("t", b"first", 0))
    await world.go(SETTLED)
    for client in (publisher, *receivers):
        client.take()
    fast_path = world.broker.fast_path
    fast_path.delivered_at_once = fast_path.fan_out.step = 7
    world.broker.kernel.turn_slice = 0.0
    handled = fast_path.fan_out.handled
    publisher.send(
        p.publish("t", b"1", qos, 1 if qos else None),
        p.publish("t", b"2", qos, 2 if qos else None, retain=True),  # by the actors
        p.publish("t", b"3", qos, 3 if qos else None),
    )
    if qos == 2:
        await world.go(1)
        publisher.send(*(p.pubrel(pid) for pid in (1, 2, 3)))
    await world.go(1)
    if qos != 2:
        assert fast_path.fan_out.handled - handled >= len(names) // 7
    for client in receivers:
        got = [packet for packet in client.take() if isinstance(packet, Publish)]
        assert [packet.payload for packet in got] == [b"1", b"2", b"3"]
        assert all(packet.qos == qos for packet in got)


@in_world()
async def test_input_behind_a_message_to_many_receivers_is_handled_before_the_end(
    world: World,
) -> None:
    """The connections end while their input waits; DISCONNECT is among it: no will is published."""
    for at in range(300):
        await world.connect(f"s{at}", filters=[("t", 2)])
    watcher = await world.connect("w", filters=[("will/#", 1), ("b/#", 1)])
    other = await world.connect("c")
    await world.connect("p", will=p.Will("will/p", b"will"))
    second = await world.connect("b", will=p.Will("will/b", b"will"))
    other.send(p.publish("t", b"first"))
    second.send(p.publish("b/x", b"first"))
    await world.go(SETTLED)
    watcher.take()
    fast_path, kernel = world.broker.fast_path, world.broker.kernel
    fast_path.delivered_at_once = fast_path.fan_out.step = 7
    kernel.turn_slice = 0.0
    connections = [world.broker.sessions.find_session(name).connection for name in ("p", "b")]  # type: ignore[union-attr]
    loop, cut, cuts = asyncio.get_running_loop(), kernel.turn_split, 0

    def between(number: int) -> None:
        one, two = connections
        if number == 1:
            behind = p.publish("b/y", b"behind") + p.disconnect()
            one.data_received(p.publish("t", b"many") + behind)  # type: ignore[union-attr]
            two.data_received(p.publish("b/x", b"late") + p.disconnect())  # type: ignore[union-attr]
        elif number == 4:
            one.connection_lost(None)  # type: ignore[union-attr]
            two.connection_lost(None)  # type: ignore[union-attr]

    def turn_cut() -> None:
        nonlocal cuts
        cut()
        cuts += 1
        loop.call_soon(between, cuts)

    kernel.turn_split = turn_cut
    other.send(p.publish("t", b"many before"))
    await world.go(2)
    assert cuts > 4
    got = watcher.payloads()
    assert sorted(got) == [b"behind", b"late"]


@in_world()
async def test_properties_that_differ_in_each_message(world: World) -> None:
    """They are read with all packets of the turn; wrong ones close the connection of one client."""
    publishers, subscribers = await connected(world, 6, 1, lambda: True)
    before = len(written(world))
    for at, client in enumerate(publishers):
        properties: Any = [(p5.USER_PROPERTY, ("number", str(at)))]
        if at == 5:
            properties = b"\x01\x02"  # a Payload Format Indicator of 2
        packet = p5.publish(f"t/{at}", b"x", 1, 5, properties=properties)
        client.transport.arrived.append(packet)  # ``send`` adds a block of properties
        client.transport.deliver()
    await world.go(1)
    assert written(world)[before:][:2] == ["TurnPublished", "TurnDelivered"]
    for at, client in enumerate(publishers):
        assert client.open == (at < 5)
    for at, client in enumerate(subscribers):
        assert client.payloads() == ([b"x"] if at < 5 else [])


def test_receivers_with_long_names_do_not_make_an_event_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(SimNats, "max_payload", 1 << 20)

    async def scenario() -> None:
        async with World(max_record=1 << 19).running() as world:
            names = [f"{at}" + "x" * 5_000 for at in range(300)]
            receivers = [await world.connect(name, filters=[("t", 1)]) for name in names]
            publisher = await world.connect("p")
            publisher.send(p.publish("t", b"first"))
            await world.go(SETTLED)
            for client in receivers:
                client.take()
            publisher.send(p.publish("t", b"x", 1, 1))
            await world.go(2)
            assert p.Puback(1) in publisher.take()
            for client in receivers:
                assert client.payloads() == [b"x"]

    simulate(scenario)


@in_world()
async def test_messages_of_qos_0_leave_at_once(world: World) -> None:
    publishers, subscribers = await connected(world, 5, 1)
    world.log.hold()
    for at, client in enumerate(publishers):
        client.send(p.publish(f"t/{at}", b"now"))
    await world.calm()
    for client in subscribers:
        (got,) = client.take()
        assert isinstance(got, Publish)
        assert (got.payload, got.qos) == (b"now", 0)
    world.log.release()


def one_by_one(kernel: Kernel) -> None:
    kernel.handle_gathered = kernel._tell_gathered


def _packets(chance: random.Random, pids: list[int]) -> list[tuple[int, bytes]]:
    """What clients send, in order: acknowledgements come by themselves."""
    found, clients = [], len(pids)
    for _ in range(chance.randint(1, 60)):
        at = chance.randrange(clients)
        qos, pids[at] = chance.choice([0, 1, 1, 1, 2]), pids[at] + 1
        topic = f"t/{chance.randrange(clients)}" if chance.random() < 0.9 else "new/topic"
        retain = chance.random() < 0.15
        if retain:  # of one publisher, since several are in no order
            topic = chance.choice([f"kept/{at}", f"t/{at}"])
        packet = p.publish(
            topic, b"%d-%d-%d" % (at, qos, pids[at]), qos, pids[at] if qos else None, retain=retain
        )
        found.append((at, packet))
    return found


class _Answering:
    """Clients that answer what they get, and keep it."""

    def __init__(self, clients: dict[str, SimClient]) -> None:
        self.clients = clients
        self.got: dict[str, list[Any]] = defaultdict(list)

    def answer(self) -> None:
        for name, client in self.clients.items():
            for packet in client.take():
                self._answer(name, client, packet)

    def _answer(self, name: str, client: SimClient, packet: p.Packet) -> None:
        if isinstance(packet, Publish):
            self.got[name].append((packet.topic, packet.payload, packet.qos, packet.retain))
            if packet.qos:
                answer = p.puback if packet.qos == 1 else p.pubrec
                client.send(answer(packet.packet_id or 0))
            return
        self.got[name].append(packet)
        if isinstance(packet, p.Pubrec):
            client.send(p.pubrel(packet.packet_id))
        elif isinstance(packet, p.Pubrel):
            client.send(p.pubcomp(packet.packet_id))


async def _outcome(seed: int, prepare: Callable[[Kernel], None]) -> tuple[Any, ...]:
    chance = random.Random(seed)
    clients = chance.choice([1, 3, 8])
    async with World(max_ack_pending=chance.choice([2, 1000])).running() as world:
        prepare(world.broker.kernel)
        observer = _Observing()
        world.broker.node.add_observer(observer)
        share = chance.choice([0, 0.5, 1])

        def mqtt5() -> bool:
            return chance.random() < share

        publishers, subscribers = await connected(world, clients, chance.choice([0, 1, 2]), mqtt5)
        every = await world.connect("every", filters=[("t/#", 2)], mqtt5=mqtt5())
        await world.go(SETTLED)
        pids = [0] * clients
        all_of_them = _Answering(
            {
                **{f"p{at}": one for at, one in enumerate(publishers)},
                **{f"s{at}": one for at, one in enumerate(subscribers)},
                "every": every,
            }
        )
        for _ in range(4):
            for at, packet in _packets(chance, pids):
                publishers[at].send(packet)
            for _ in range(chance.choice([1, 12])):
                await world.calm()
                all_of_them.answer()
        for _ in range(400):
            await world.go(0.2)
            all_of_them.answer()
        node = world.broker.node.state
        left = [
            (name, len(state.inflight), len(state.inbound), state.queued)
            for name in sorted(node.sessions.names())
            if (state := node.sessions[name]).inflight or state.inbound or state.queued
        ]
        assert not left
        return (
            {name: _by_qos(some) for name, some in all_of_them.got.items()},
            {one.topic: (one.payload, one.qos) for one in node.retained.all()},
            dict(observer.got),
        )


class _Observing:
    """An observer of messages, such as the bridge to NATS."""

    def __init__(self) -> None:
        self.got: defaultdict[tuple[str, int, bytes], list[tuple[bytes, bool]]] = defaultdict(list)
        self._last = 0

    def published(self, publication: Publication) -> None:
        session, batch, content, (first, last), *_ = publication
        if batch.qos:
            assert first <= last >= self._last
            assert len(batch.positions) == len(batch)
            self._last = last
        assert content.topics == batch.topics
        for topic, payload in zip(content.topics, content.payloads, strict=True):
            self.got[session, batch.qos, topic].append((payload, batch.published_retain))


def _by_qos(some: list[Any]) -> dict[Any, list[Any]]:
    """What must keep its order: messages of one topic and QoS, acknowledgements of one kind.

    Several publishers are not in any order; of each, it is kept.
    """
    found = defaultdict(list)
    for one in some:
        if isinstance(one, tuple):
            found[one[0], one[1].rpartition(b"-")[0]].append(one)
        elif isinstance(one, (p.Puback, p.Pubrec, p.Pubcomp)):
            found[type(one)].append(one)
    return dict(found)


@pytest.mark.parametrize(
    "seed",
    [pytest.param(seed, marks=[pytest.mark.long] if seed >= 10 else []) for seed in range(40)],
)
def test_a_turn_in_columns_equals_packets_one_by_one(seed: int) -> None:
    outcomes = []

    async def scenario() -> None:
        outcomes.append(await _outcome(seed, lambda _kernel: None))
        outcomes.append(await _outcome(seed, one_by_one))

    simulate(scenario)
    assert outcomes[0] == outcomes[1]


def test_the_state_is_that_of_the_log() -> None:
    async def scenario() -> None:
        for seed in range(5):
            async with World().running() as world:
                publishers, subscribers = await connected(world, 6, 2)
                chance = random.Random(seed)
                for at, packet in _packets(chance, [0] * 6):
                    publishers[at].send(packet)
                await world.go(1)
                for client in subscribers:
                    for got in client.take():
                        if isinstance(got, Publish) and got.qos == 1 and chance.random() < 0.5:
                            client.send(p.puback(got.packet_id or 0))
                await world.go(1)
                node = world.broker.node.state
                names = sorted(node.sessions.names())
                before = [session_digest(node, name) for name in names if name.startswith("s")]
                await world.crash()
                folded = type(node)()
                for record in world.disk.decoded():
                    folded.apply_record(record)
                after = [session_digest(folded, name) for name in names if name.startswith("s")]
                assert before == after
                await world.start()

    simulate(scenario)


@pytest.mark.plain
@in_world()
async def test_packets_that_fail_on_the_fast_path_go_to_the_actors(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pass has changed nothing by then: the one that fails ends alone."""
    failed = []

    def read_publish(*_: object) -> int:
        failed.append(1)
        raise RuntimeError("trapped")

    publishers, subscribers = await connected(world, 5, 1)
    monkeypatch.setattr(FastPath, "_read_publish", read_publish)
    for at, client in enumerate(publishers):
        client.send(p.publish(f"t/{at}", b"x", 1, 5))
    await world.go(1)
    assert failed
    assert all(client.take() == [p.Puback(5)] for client in publishers)
    assert all(len(client.take()) == 1 for client in subscribers)


@pytest.mark.plain
def test_a_turn_that_fails_when_it_is_recorded_ends_the_broker(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What is half done must not go on, and nothing of it has been acknowledged."""

    def record(*_: object) -> None:
        raise RuntimeError("trapped")

    async def scenario() -> None:
        world = World()
        await world.start()
        publishers, subscribers = await connected(world, 3, 1)
        monkeypatch.setattr(FastPath, "_record", record)
        publishers[0].send(p.publish("t/0", b"x", 1, 5))
        await world.go(1)
        assert "a turn failed" in str(world.failure())
        assert publishers[0].take() == subscribers[0].take() == []
        await world.crash()

    simulate(scenario)


@pytest.mark.parametrize(
    ("packets", "bulk"),
    [
        ([p.publish("t", b"x", 1, 1)], False),
        ([p.publish("t", b"x", 1, 1)] * 3, False),
        ([p.publish("t", b"x", 1, 1)] * 4, True),
        ([p.publish("t", b"x" * 200, 1, 1)] * 4, True),
        ([p.puback(1)] * 4, True),
        ([p.puback(1)] * 3, False),
        ([p.publish(f"t/{at % 4}", b"x", 1, 1) for at in range(15)], False),
        ([p.publish(f"t/{at % 4}", b"x", 1, 1) for at in range(16)], True),
        ([p.publish(f"t/{at % 10}", b"x", 1, 1) for at in range(63)], False),
        ([p.publish(f"t/{at % 10}", b"x", 1, 1) for at in range(64)], True),
        ([p.publish(f"t/{at}", b"x", 1, 1) for at in range(100)], False),
        ([p.publish(f"t/{at % 10}", b"x") for at in range(15)], False),
        ([p.publish(f"t/{at % 10}", b"x") for at in range(16)], True),
        ([p.publish(f"t/{at}", b"x") for at in range(100)], False),
        ([p.publish("t", b"x")] * 3 + [p.publish("t", b"x" * 100)[:50]], False),
        ([], False),
    ],
)
def test_many_packets_on_few_topics_are_bulk(packets: list[bytes], *, bulk: bool) -> None:
    assert is_bulk(b"".join(packets)) is bulk


@in_world(receive_maximum=4)
async def test_two_reads_of_a_pass_have_one_receive_window(world: World) -> None:
    """[MQTT-3.3.4-9]: neither read alone holds more than the client may send, both do."""
    client = await world.connect("c", mqtt5=True)
    client.send(p5.publish("t", b"first", 0))
    await world.go(SETTLED)
    client.take()
    (connection,) = world.broker.admission.connections
    for first in (1, 4):
        pids = range(first, first + 3)
        connection.data_received(b"".join(p5.publish("t", b"", 1, pid) for pid in pids))
    await world.go(1)
    assert world.broker.node.limits.refused.counts["receive_maximum"] == 1
    assert not client.open


@in_world()
async def test_reads_of_one_client_keep_their_order_when_a_turn_is_split(world: World) -> None:
    """The first read needs its actor from the second packet on; the other one could be passed."""
    receivers = [await world.connect(f"r{at}", filters=[("t", 1)]) for at in range(300)]
    sender = await world.connect("sender")
    other = await world.connect("other")
    for client in (sender, other):
        client.send(p.publish("t", b"first", 0))
    await world.go(3)
    for client in receivers:
        client.take()
    kernel = world.broker.kernel
    kernel.turn_slice, fast_path = 0.0, world.broker.fast_path
    fast_path.fan_out.step = 7
    session = world.broker.sessions.find_session("sender")
    assert session is not None
    connection = session.connection
    assert isinstance(connection, Connection)
    other.send(p.publish("t", b"x", 1, 9))
    for _ in range(10_000):
        if kernel.between:
            break
        await asyncio.sleep(0)
    assert kernel.between
    first = p.publish("t", b"1", 1, 1) + p.publish("t", b"2", 1, 2, retain=True)
    connection.data_received(first)
    connection.data_received(p.publish("t", b"3", 1, 3))
    await world.go(3)
    for client in receivers:
        got = client.payloads()
        assert got == [b"x", b"1", b"2", b"3"]
    assert [packet.packet_id for packet in sender.take() if isinstance(packet, Puback)] == [1, 2, 3]
