"""Long work for one client is done in parts, between which other clients are served."""

import asyncio
import itertools
from collections.abc import Iterator
from typing import Any

import pytest
from harness import packets as p

from actors.kernel import kernel
from actors.kernel.actor import LoopActor
from actors.limits.limit_options import LimitOptions, Quota
from actors.node.read_pause import ReadPause
from actors.session import lifecycle, publisher, subscription_handler
from actors.session.session_messages import NEXT_TURN, Freeze, Packets
from eventstore.format.events import SessionClosed, Subscribed
from protocol.mqtt.packets import Publishes, Subscribe
from simulation.world import SimClient, World, in_world

MANY = [(f"many/{number}", 1) for number in range(1000)]
SOME = MANY[:500]
"""So few that a session with them is frozen."""


@in_world()
async def test_a_large_subscribe_is_granted_in_parts_and_answered_once(world: World) -> None:
    client = await world.connect("c")
    parts = world.broker.kernel.parts
    client.send(p.subscribe(7, *MANY))
    await world.go(0.5)
    (answer,) = client.take()
    assert isinstance(answer, p.Suback)
    assert list(answer.codes) == [1] * len(MANY)
    granted = world.disk.events(Subscribed)
    assert len(granted) == -(-len(MANY) // subscription_handler._FILTERS_AT_ONCE)
    assert world.broker.kernel.parts - parts >= len(granted) - 1


@in_world()
async def test_long_filters_are_granted_and_removed_a_few_at_a_time(world: World) -> None:
    long = [f"{'x' * 30_000}/{number}" for number in range(32)]
    client = await world.connect("c")
    parts = [world.broker.kernel.parts]
    for packet in (p.subscribe(7, *[(one, 1) for one in long]), p.unsubscribe(8, *long)):
        client.send(packet)
        await world.go(0.5)
        parts.append(world.broker.kernel.parts)
    assert [type(packet) for packet in client.take()] == [p.Suback, p.Unsuback]
    assert world.broker.node.router.subscriptions == 0
    granted, removed = (after - before for before, after in itertools.pairwise(parts))
    assert min(granted, removed) >= len(long) // 2 - 1


@in_world()
async def test_others_come_between_the_parts_of_one_client(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernel, "LATER_SLICE", 0.0)  # one part for each visit of the loop
    slow, quick = await world.connect("slow"), await world.connect("quick")
    await world.go(2)
    slow.send(p.subscribe(7, *MANY))
    quick.send(p.publish("t", b"x", 1, 1))
    for _ in range(15):  # visits of the loop
        await asyncio.sleep(0)
    assert 0 < world.broker.node.router.subscriptions < len(MANY)
    # The message was taken meanwhile: it is in the log's next record.
    assert world.broker.node.counters.received[1] == 1
    await world.go(1)
    assert [type(packet) for packet in quick.take()] == [p.Puback]
    assert world.broker.node.router.subscriptions == len(MANY)


@in_world()
async def test_packets_after_a_large_subscribe_wait_for_it(world: World) -> None:
    client = await world.connect("c")
    client.send(
        p.subscribe(7, *MANY),
        p.publish("many/999", b"x", 1, 1),
        p.pingreq(),
        p.unsubscribe(8, "many/999"),
    )
    await world.go(1)
    taken = client.take()
    kinds = [type(packet) for packet in taken if not isinstance(packet, p.Publish)]
    assert kinds == [p.Suback, p.Puback, p.Pingresp, p.Unsuback]
    assert sum(isinstance(packet, p.Publish) for packet in taken) == 1
    assert not world.broker.sessions.find_session("c").connection.paused  # type: ignore[union-attr]


@in_world()
async def test_a_client_that_leaves_meanwhile_stops_the_work(world: World) -> None:
    client = await world.connect("c", clean=True)
    client.send(p.subscribe(7, *[(f"f/{n}", 0) for n in range(20_000)]))
    await world.calm()
    client.drop()
    await world.go(2)
    assert world.broker.node.router.subscriptions == 0
    assert "c" not in world.broker.node.state.sessions


@pytest.mark.parametrize("ends", [p.disconnect(), b""])
@in_world()
async def test_a_client_that_leaves_at_once_leaves_little_work_behind(
    world: World, ends: bytes
) -> None:
    """Its first request is carried out: it was connected when it subscribed [MQTT-3.8.4-1]."""
    node = world.broker.node
    for number, many in enumerate((100, 20_000)):
        client = await world.connect(f"c{number}")
        client.send(p.subscribe(7, *[(f"f{number}/{n}", 0) for n in range(many)]), ends)
        client.drop()
        await world.go(20)
    assert 100 + 1024 <= node.router.subscriptions < 100 + 2048


@in_world()
async def test_a_session_with_many_subscriptions_is_resumed_and_ends(world: World) -> None:
    client = await world.connect("c", filters=SOME)
    client.drop()
    await world.go(5)
    assert world.broker.sessions.find_session("c") is None
    assert world.broker.node.state.sessions.frozen("c") is not None
    writer = await world.connect("w")
    writer.send(p.publish("many/5", b"away", 1, 1))
    await world.go(1)
    client = await world.connect("c", present=True)
    await world.go(0.5)
    found = client.payloads()
    assert found == [b"away"]
    assert world.broker.node.router.subscriptions == len(SOME)
    again = await world.connect("c", clean=True, present=False)
    await world.go(1)
    assert world.broker.node.router.subscriptions == 0
    again.send(p.subscribe(1, ("many/5", 1)))
    await world.go(0.1)
    writer.send(p.publish("many/5", b"there", 1, 2))
    await world.go(0.5)
    assert again.payloads() == [b"there"]


@in_world()
async def test_a_session_with_very_many_subscriptions_is_not_frozen_nor_after_a_start(
    world: World,
) -> None:
    """Thawing it would restore all of them in one turn."""
    client = await world.connect("c", filters=MANY)
    client.drop()
    await world.go(5)
    for _ in range(2):
        assert world.broker.node.state.sessions.frozen("c") is None
        assert world.broker.node.router.has("c", "many/5")
        await world.restart()
        await world.go(5)
    writer = await world.connect("w")
    writer.send(p.publish("many/5", b"away", 1, 1))
    await world.go(1)
    client = await world.connect("c", present=True)
    await world.go(0.5)
    found = client.payloads()
    assert found == [b"away"]


@in_world(max_ack_pending=100_000)
async def test_many_retained_messages_are_replayed_in_order_of_age(world: World) -> None:
    writer = await world.connect("w")
    count = 2 * subscription_handler._RETAINED_AT_ONCE + 7
    for first in range(0, count, 500):
        writer.send(
            *(
                p.publish(f"r/{n % 7}/{n}", b"%d" % n, 1, n % 500 + 1, retain=True)
                for n in range(first, min(first + 500, count))
            )
        )
        await world.go(0.2)
    reader = await world.connect("r", filters=[("r/#", 1)])
    await world.go(2)
    taken = [packet for packet in reader.take() if isinstance(packet, p.Publish)]
    assert [packet.payload for packet in taken] == [b"%d" % n for n in range(count)]
    assert all(packet.retain for packet in taken)


class Behind(LoopActor):
    """Requests a part of longer work for another actor."""

    def on_receive(self, message: tuple[LoopActor, Any]) -> None:
        self.kernel.later(*message)


@pytest.mark.parametrize("turn_slice", [0.0, 3600.0])
@in_world(max_ack_pending=100_000)
async def test_nothing_is_published_while_many_retained_messages_are_replayed(
    world: World, turn_slice: float
) -> None:
    """What is published in the same turn, although the turn is split, comes after them."""
    writer = await world.connect("w")
    reader = await world.connect("r")
    count = subscription_handler._RETAINED_AT_ONCE + 7
    for first in range(0, count, 500):
        numbers = range(first, min(first + 500, count))
        writer.send(*(p.publish(f"r/{n}", b"old", 1, n - first + 1, retain=True) for n in numbers))
        await world.go(0.2)
    await world.go(3)
    reader.take()
    kernel, sessions = world.broker.kernel, world.broker.sessions
    kernel.turn_slice = turn_slice
    reading, writing = sessions.find_session("r"), sessions.find_session("w")
    assert reading is not None
    assert writing is not None
    assert reading.connection is not None
    assert writing.connection is not None
    news = Publishes(1, retain=True)
    news.topics += [b"r/5", b"r/new", b"r/%d" % (count - 1)]
    news.packet_ids += [1, 2, 3]
    news.payloads.extend([b"new"] * 3)
    behind = Behind()
    kernel.spawn(behind)
    splits = kernel.splits
    kernel.tell(reading, Packets(reading.connection, [Subscribe(9, [("r/#", 1)])]))
    # The grant is a part of longer work: this becomes the next part of the same turn.
    kernel.tell(behind, (writing, Packets(writing.connection, [news])))
    await world.go(1)
    assert bool(turn_slice) or kernel.splits > splits
    taken = [packet for packet in reader.take() if isinstance(packet, p.Publish)]
    assert [(packet.payload, packet.retain) for packet in taken] == [
        *[(b"old", True)] * count,
        *[(b"new", False)] * 3,
    ]


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_world()
async def test_a_burst_of_topics_is_matched_in_parts_and_keeps_its_order(
    world: World, monkeypatch: pytest.MonkeyPatch, qos: int
) -> None:
    monkeypatch.setattr(publisher, "_ENOUGH", 0.0)
    world.broker.node.router.routes.matched_at_once = 10
    reader = await world.connect("r", filters=[("t/#", 2)])
    writer = await world.connect("w")
    await world.go(2)
    writer.send(*(p.publish(f"t/{n}", b"%d" % n, qos, n + 1 if qos else None) for n in range(300)))
    await world.go(1)
    if qos == 2:
        writer.send(*(p.pubrel(n + 1) for n in range(300)))
        await world.go(1)
    taken = [packet for packet in reader.take() if isinstance(packet, p.Publish)]
    assert [packet.payload for packet in taken] == [b"%d" % n for n in range(300)]
    kind = {0: None, 1: p.Puback, 2: p.Pubcomp}[qos]
    if kind is not None:
        answers = [packet for packet in writer.take() if isinstance(packet, kind)]
        assert [packet.packet_id for packet in answers] == list(range(1, 301))


@in_world()
async def test_a_burst_waits_for_another_turn_while_a_turn_has_many_deliveries(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(publisher, "_DELIVERIES_SHARED", 10)
    receivers = [await world.connect(f"r{number}") for number in range(6)]
    for receiver in receivers:
        receiver.send(p.subscribe(1, ("t", 1)))
    publishers = [await world.connect(f"p{number}") for number in range(4)]
    await world.go(5)  # they count as new no longer
    for receiver in receivers:
        receiver.take()
    parts = world.broker.kernel.parts
    for client in publishers:
        client.send(*[p.publish("t", bytes([pid]), 1, pid) for pid in range(1, 6)])
    await world.go(1)
    assert world.broker.kernel.parts > parts
    for client in publishers:
        assert [packet.packet_id for packet in client.take()] == [1, 2, 3, 4, 5]
    for receiver in receivers:
        assert len(receiver.take()) == 20


@in_world()
async def test_a_client_that_sends_much_comes_behind_others_until_it_sends_less(
    world: World,
) -> None:
    client = await world.connect("c")
    await world.go(5)  # it counts as new no longer
    connection = world.broker.sessions.find_session("c").connection  # type: ignore[union-attr]
    assert connection is not None
    client.send(p.publish("t", b"x"))
    await world.go(1)
    assert not connection.load.heavy
    for _ in range(300):
        client.send(*[p.publish("t", b"x")] * 5)
        await world.go(0.001)
    assert connection.load.heavy
    parts = world.broker.kernel.parts
    client.send(p.publish("t", b"x"))
    await world.go(0.01)
    assert world.broker.kernel.parts > parts
    await world.go(10)
    client.send(p.publish("t", b"x"))
    await world.go(1)
    assert not connection.load.heavy


@in_world()
async def test_a_client_that_sends_much_from_the_beginning_is_soon_no_light_one(
    world: World,
) -> None:
    """It used to count as light again for the first 0.1 s after its first second."""
    await world.go(100)
    client = await world.connect("c")
    for _ in range(120):
        client.send(*[p.publish("t", b"x")] * 15)
        await world.go(0.01)
    connection = world.broker.sessions.find_session("c").connection  # type: ignore[union-attr]
    assert connection is not None
    assert connection.load.heavy
    assert world.broker.kernel.light_at < 100.5


@in_world()
async def test_a_client_that_begins_to_send_much_is_heavy_at_once(world: World) -> None:
    client = await world.connect("c")
    await world.go(5)  # it counts as new no longer
    connection = world.broker.sessions.find_session("c").connection  # type: ignore[union-attr]
    assert connection is not None
    client.send(p.publish("t", b"x"))
    await world.go(0.15)
    for _ in range(12):
        client.send(*[p.publish("t", b"x")] * 20)
        await world.go(0.001)
    assert connection.load.heavy


@in_world()
async def test_clients_that_only_acknowledge_or_ping_shorten_no_parts(world: World) -> None:
    client = await world.connect("c")
    await world.go(5)  # it counts as new no longer
    kernel = world.broker.kernel
    for packet in (p.puback(7), p.pubrec(7), p.pubcomp(7), p.pingreq()):
        client.send(packet)
        await world.go(0.01)
        assert not kernel.shared
    client.send(p.publish("t", b"x"))
    await world.go(0.01)
    assert kernel.shared


@pytest.mark.plain
@in_world(bounds=LimitOptions(client=Quota(publish_rate=100)))
async def test_a_client_that_waits_for_its_rate_is_no_stranger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = await world.connect("c")
    await world.go(5)  # it counts as new no longer
    parts = world.broker.kernel.parts

    def tell_low_priority(_actor: object, message: object, *, first: bool = False) -> None:
        pytest.fail(f"put off: {message!r}")

    monkeypatch.setattr(world.broker.kernel, "tell_low_priority", tell_low_priority)
    messages = [p.publish("t", bytes(400), 1, pid) for pid in range(1, 1001)]
    client.send(b"".join(messages))
    await world.go(12)
    assert world.broker.kernel.parts - parts > 20
    acknowledged = [packet.packet_id for packet in client.take() if isinstance(packet, p.Puback)]
    assert acknowledged == list(range(1, 1001))


@in_world(bounds=LimitOptions(max_wildcard_patterns=10))
async def test_wildcard_patterns_beyond_the_bound_are_refused_and_counted(world: World) -> None:
    bomb = [("/".join(levels), 0) for levels in itertools.product("a+", repeat=8)]
    client = await world.connect("c")
    client.send(p.subscribe(7, *bomb))
    await world.go(0.5)
    (answer,) = client.take()
    assert isinstance(answer, p.Suback)
    assert answer.codes.count(0x80) == len(bomb) - 11
    assert world.broker.node.limits.refused.counts["wildcard_patterns"] > 0
    assert world.broker.node.router.subscriptions == 11


@in_world(bounds=LimitOptions(max_wildcard_patterns=10, max_wildcard_patterns_total=40))
async def test_one_address_with_many_sessions_leaves_wildcard_patterns_to_others(
    world: World,
) -> None:
    bomb = [("/".join(levels), 0) for levels in itertools.product("a+", repeat=8)]
    for number in range(10):
        client = await world.connect(f"c{number}", clean=number % 2 > 0)
        client.send(p.subscribe(7, *bomb[number * 20 : number * 20 + 20]))
        await world.go(0.5)
        if number % 3:
            client.drop()  # its patterns stay if its session does
            await world.go(3)
    honest = SimClient(world, host="198.51.100.7")
    honest.send(p.connect("honest"), p.subscribe(8, ("a/b/c/d/e/f/g/h/i/+", 1)))
    await world.go(0.5)
    (answer,) = (packet for packet in honest.take() if isinstance(packet, p.Suback))
    assert list(answer.codes) == [1]


@in_world()
async def test_many_retained_messages_are_replayed_in_several_batches(world: World) -> None:
    """They were one batch: 20,000 took 32 ms of processor time in one turn."""
    publisher = await world.connect("p")
    for first in range(0, 3000, 500):
        topics = [f"r/{number}" for number in range(first, first + 500)]
        publisher.send(b"".join(p.publish(topic, b"x", retain=True) for topic in topics))
        await world.go(2)
    client = await world.connect("c")
    client.send(p.subscribe(1, ("r/#", 0)))
    await world.go(5)
    got = [packet.topic for packet in client.take() if isinstance(packet, p.Publish)]
    assert sorted(got) == sorted(f"r/{number}" for number in range(3000))
    (found,) = world.broker.node.router.subscribers("c")
    assert found.actor is not None
    assert found.actor.handled == 3


@in_world(bounds=LimitOptions(max_subscriptions_total=40))
async def test_subscriptions_of_all_sessions_have_a_limit_and_no_owner_takes_all(
    world: World,
) -> None:
    router = world.broker.node.router
    for number in range(5):
        greedy = await world.connect(f"greedy-{number}", clean=False)
        filters = [(f"{number}/{each}", 0) for each in range(10)]
        greedy.send(p.subscribe(7, *filters, filters[0]))
        await world.go(0.5)
        if number % 2:
            greedy.drop()  # what it holds counts for as long as its session lasts
            await world.go(5)
    assert router.subscriptions == 20
    assert world.broker.node.limits.refused.counts["subscriptions_total"] > 0
    other = SimClient(world, host="198.51.100.7")
    other.send(p.connect("other"), p.subscribe(8, *((f"o/{n}", 1) for n in range(12))))
    await world.go(0.5)
    (answer,) = (packet for packet in other.take() if isinstance(packet, p.Suback))
    assert list(answer.codes) == [1] * 10 + [0x80] * 2
    # A filter that it has may be subscribed to again, and room that is made is used.
    other.send(p.subscribe(9, ("o/0", 0)), p.unsubscribe(10, "o/1", "o/2"))
    other.send(p.subscribe(11, ("o/new", 0)))
    await world.go(0.5)
    codes = [list(packet.codes) for packet in other.take() if isinstance(packet, p.Suback)]
    assert codes == [[0], [0]]
    again = await world.connect("greedy-0", clean=True)
    again.send(p.subscribe(7, ("again", 0)))
    await world.go(0.5)
    assert [packet.codes[0] for packet in again.take() if isinstance(packet, p.Suback)] == [0]


@in_world(bounds=LimitOptions(subscribe_rate=10.0, max_subscriptions=100))
async def test_a_client_that_changes_too_many_subscriptions_waits_but_not_its_successor(
    world: World,
) -> None:
    client = await world.connect("c")
    filters = [(f"f/{n}", 0) for n in range(100)]
    client.send(p.subscribe(1, *filters))
    await world.go(0.5)
    client.send(p.unsubscribe(2, *(name for name, _ in filters)))
    await world.go(0.5)
    assert [type(packet) for packet in client.take()] == [p.Suback, p.Unsuback]
    connection = world.broker.sessions.find_session("c").connection  # type: ignore[union-attr]
    assert connection is not None
    assert connection.paused & ReadPause.WORK
    client.send(p.subscribe(3, ("more", 0)))
    await world.go(5)
    assert client.take() == []
    await world.connect("c")  # another connection takes over at once
    assert world.broker.node.limits.refused.counts["subscribe_rate"] == 1


@pytest.mark.plain
@in_world()
async def test_packets_that_waited_for_longer_work_are_handled_in_another_turn(
    world: World,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both may be long: the last part of a SUBSCRIBE, and the end of a session that is large."""
    turns: list[int] = []
    await world.connect("c")
    session = world.broker.sessions.find_session("c")
    assert session is not None
    loop = session.kernel

    def work() -> Iterator[object]:
        yield NEXT_TURN
        turns.append(loop.turns + loop.parts)

    def handled(*_: Any) -> None:
        turns.append(loop.turns + loop.parts)

    monkeypatch.setattr(lifecycle.SessionLifecycle, "handle", handled)
    session.begin_work(work())
    for _ in range(2):
        loop.tell(session, Freeze())
    await world.go(0.1)
    assert len(turns) == len(set(turns)) == 3


@in_world()
async def test_a_deferred_message_may_end_its_session(world: World) -> None:
    client = await world.connect("c", clean=True)
    session = world.broker.sessions.find_session("c")
    assert session is not None
    client.send(p.subscribe(7, *MANY))
    client.send(p.publish("t", b"x", 1, 1))
    client.drop()
    await world.go(5)
    assert session.stopped
    assert world.broker.sessions.find_session("c") is None
    ends = world.disk.events(SessionClosed)
    assert [end.reason for end in ends] == ["error"]
    assert world.broker.node.router.subscriptions == 0
