"""Messages from log to log: exactly once, retained everywhere, at every QoS."""

import asyncio
import itertools
import os
from collections.abc import Iterator
from typing import Any

import pytest
from harness import mqtt5_packets
from harness import packets as p
from harness.packets import Publish

from actors.connection.pseudonyms import KEY_SIZE, pseudonym
from actors.exchange import qos0_exchange, skipped_records
from actors.exchange.effect_recorder import EffectRecorder
from actors.exchange.exchange import LogExchange
from actors.exchange.followed_positions import FollowedPositions
from actors.exchange.qos0_exchange import Qos0Messages, encode_frame
from actors.exchange.taken_messages import Taken, TakenMessages
from actors.session.publisher import Publisher
from cli.commands.broker_advice import advise_on_broker
from eventstore.format.node_events import Followed
from eventstore.format.positions import INDEX_BITS, from_runs
from eventstore.partitions import partition_of
from protocol.errors import FoldmqError
from simulation.chaos import small_checkpoints
from simulation.inspection import ask, change
from simulation.network import SimClient
from simulation.partition_chaos import run
from simulation.partitions import PartitionWorld, SimExchangeLink, name_in, world_of
from simulation.two_logs import two
from simulation.world import runs

MAX_SEEDS = 60
"""Runs within which each mutant is caught."""


def payloads(received: list[object]) -> list[bytes]:
    return [packet.payload for packet in received if isinstance(packet, Publish)]


@runs(two)
async def test_a_log_that_is_none_of_the_node_is_one_clear_line(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    link: Any = None
    with pytest.raises(FoldmqError, match="its data directory was replaced while it ran"):
        here.broker.join(["new-p0", "new-p1"], [], link)


@pytest.mark.parametrize("qos", [0, 1, 2])
@runs(two)
async def test_a_message_reaches_a_client_of_another_log(
    here: PartitionWorld, there: PartitionWorld, *, qos: int
) -> None:
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    reader = await there.connect(name_in(worlds, 1), filters=[("a/#", qos)])
    for number in range(20):
        sender.send(
            p.publish("a/b", b"%d" % number, qos=qos, packet_id=number + 1 if qos else None)
        )
        if qos == 2:
            await here.go(0.05)
            sender.send(p.pubrel(number + 1))
    await here.go(3)
    assert payloads(reader.take()) == [b"%d" % number for number in range(20)]


@runs(two)
async def test_records_of_a_busy_log_are_taken_together(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    """Each turn that takes something costs a record of its own."""
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
    await here.go(1)
    count = 600
    for number in range(count):
        sender.send(p.publish("a", b"%d" % number, 1, number + 1))
        await asyncio.sleep(0.001)
    await here.go(1)
    taken = payloads(reader.take())
    assert taken == [b"%d" % number for number in range(len(taken))]
    assert len(taken) >= 20
    positions = there.disk.events(Followed)
    assert len(positions) <= count * 0.5, "at this rate a commit_delay has three messages"


async def publish_and_count_reads(
    here: PartitionWorld, there: PartitionWorld, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Send messages to a client of ``there``; return how often that reads the log of ``here``."""
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
    await here.go(1)
    count, log = 0, there._readers[-1]
    read = log.read

    def counted(*args: Any) -> Any:
        nonlocal count
        count += 1
        return read(*args)

    with monkeypatch.context() as patch:
        patch.setattr(log, "read", counted)
        for number in range(50):
            sender.send(p.publish("a", b"%d" % number, 1, number + 1))
            await here.go(0.01)
        await here.go(3)
    taken = payloads(reader.take())
    assert taken == [b"%d" % number for number in range(len(taken))]
    assert len(taken) >= 20
    return count


@runs(two)
async def test_records_that_are_sent_are_not_read(
    here: PartitionWorld, there: PartitionWorld, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert await publish_and_count_reads(here, there, monkeypatch) == 0


def test_records_whose_sending_failed_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    announce, sent = SimExchangeLink.announce, itertools.count()

    def some(self: SimExchangeLink, log: str, sequence: int, record: bytes) -> None:
        if not record or next(sent) % 3:
            announce(self, log, sequence, record)

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        assert await publish_and_count_reads(here, there, monkeypatch) > 5

    monkeypatch.setattr(SimExchangeLink, "announce", some)
    two(scenario)


def test_a_record_of_64_kib_is_read_from_the_log(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        worlds = [here, there]
        sender = await here.connect(name_in(worlds, 0))
        reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
        for number in range(3):
            sender.send(p.publish("a", b"%d" % number + bytes(65536), 1, number + 1))
            await here.go(1)
        assert [payload[:1] for payload in payloads(reader.take())] == [b"0", b"1", b"2"]
        assert max(sizes) < 65537

    sizes = [0]
    announce = SimExchangeLink.announce

    def measured(self: SimExchangeLink, log: str, sequence: int, record: bytes) -> None:
        sizes.append(len(record))
        announce(self, log, sequence, record)

    monkeypatch.setattr(SimExchangeLink, "announce", measured)
    two(scenario)


@pytest.mark.parametrize("fault", ["damaged", "before", "truncated"])
def test_what_is_sent_and_is_not_in_the_log_is_not_taken(
    fault: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    announce, before = SimExchangeLink.announce, [b""]

    def wrong(self: SimExchangeLink, log: str, sequence: int, record: bytes) -> None:
        sent = {
            "damaged": record[:-1] + bytes([record[-1] ^ 1]) if record else b"",
            "before": before[0],
            "truncated": record[:40],
        }[fault]
        before[0] = record
        announce(self, log, sequence, sent)

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        assert await publish_and_count_reads(here, there, monkeypatch) > 5

    monkeypatch.setattr(SimExchangeLink, "announce", wrong)
    two(scenario)


@runs(two)
async def test_records_that_come_faster_than_they_are_taken_stay_bounded(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    exchange, stream = there.broker.exchange, here.disk.stream.history
    assert exchange is not None
    follower = exchange._followers[here.name]
    last, data = max(stream), bytes(60_000)
    for number in range(1, 101):
        exchange.heard(here.name, last + number, data)
    assert 0 < follower._pushed_bytes == 60_000 * len(follower._pushed) < 1_200_000
    follower._announced = last  # none of this is in the log
    await here.go(1)


@runs(two)
async def test_records_that_were_sent_while_a_log_was_not_followed_leave_time_for_others(
    here: PartitionWorld, there: PartitionWorld, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    await here.go(1)
    exchange = there.broker.exchange
    assert exchange is not None
    heard = exchange.heard
    with monkeypatch.context() as patch:
        patch.setattr(exchange, "heard", lambda *_: None)
        for number in range(400):
            sender.send(p.publish("a", b"%d" % number, 1, number + 1))
            await here.go(0.01)
        # Without a gap between them, whatever was lost.
        stream = here.disk.stream.history
        through = exchange.last_taken(here.name)
        waiting = range(through + 1, max(stream) + 1)
        assert len(waiting) > 200
    for sequence in waiting:
        heard(here.name, sequence, stream[sequence])
    seen = [through]
    while seen[-1] < max(waiting):
        await asyncio.sleep(0)
        seen.append(max(seen[-1], exchange.last_taken(here.name)))
        assert len(seen) < 5000
    assert max(after - before for before, after in itertools.pairwise(seen)) <= 64


@runs(two)
async def test_a_log_that_stays_quiet_is_announced_less_often(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    exchange, heard = there.broker.exchange, []
    assert exchange is not None
    exchange.heard = lambda log, sequence, _: heard.append((log, sequence))  # type: ignore[method-assign]
    await here.go(20)
    heard.clear()
    await here.go(20)
    assert len(heard) == 5
    assert set(heard) == {(here.name, here.broker.node.journal.durable)}


class Unreached(asyncio.Event):
    """What does not happen."""

    def set(self) -> None:
        """Do nothing."""


@runs(two)
async def test_a_node_that_takes_over_does_not_wait_long_for_a_log_that_cannot_be_read(
    here: PartitionWorld,
    there: PartitionWorld,
) -> None:
    exchange, state = here.broker.exchange, here.broker.node.state
    assert exchange is not None
    for follower in exchange._followers.values():
        follower.caught_up = Unreached()
    loop, waited = asyncio.get_running_loop(), []
    for state.epoch in (0, 2):
        begun = loop.time()
        await exchange.catch_up()
        waited.append(loop.time() - begun)
    state.epoch = 0
    assert waited[0] > 20 > 2 > waited[1]  # seconds of virtual time


def test_with_pseudonyms_a_session_belongs_to_the_log_of_its_pseudonym() -> None:
    key = bytes(range(KEY_SIZE))

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        name = next(
            name for name in map(str, range(100)) if partition_of(pseudonym(name, key), 2) == 0
        )
        reader = await here.connect(name, filters=[("a", 1)])
        stranger = SimClient(there)
        stranger.send(p.connect(name, clean=False))
        await here.go(0.1)
        assert stranger.take()[0] == p.Connack(3)
        for number in range(8):
            nameless = await there.connect("", clean=True)
            nameless.send(p.publish("a", b"%d" % number, 1, 1))
        await here.go(1)
        assert payloads(reader.take()) == [b"%d" % number for number in range(8)]
        sessions = [name for name, _ in there.broker.node.state.sessions.items()]
        own = [name for name in sessions if name.startswith("p-")]
        assert len(own) == 8
        assert all(partition_of(name, 2) == 1 for name in own)

    two(scenario, pseudonym_key=key)


@runs(two)
async def test_messages_of_qos_0_that_arrive_during_recovery_disturb_no_session(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    reader = await there.connect(name_in(worlds, 1), filters=[("a", 1)])
    reader.drop()
    await here.go(1)
    for _ in range(2):
        await there.crash()
        starting = asyncio.ensure_future(there.start())
        while not starting.done():
            sender.send(p.publish("a", b"0"))
            await asyncio.sleep(0.0002)
        await starting
    for number in range(10):
        sender.send(p.publish("a", b"%d" % number, 1, number + 1))
    await here.go(2)
    state = there.broker.node.state.sessions.peek(name_in(worlds, 1))
    assert state is not None
    assert state.queued + len(state.inflight) == 10


@pytest.mark.parametrize("qos", [0, 1])
@runs(two)
async def test_the_busiest_topics_of_a_log_are_those_of_its_own_clients(
    here: PartitionWorld, there: PartitionWorld, *, qos: int
) -> None:
    """What is taken from another log is counted there: the figures of all logs can be added up."""
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0))
    reader = await there.connect(name_in(worlds, 1), filters=[("a", qos)])
    inspectors = [world.broker.inspection.inspector for world in worlds]

    async def busiest(number: int) -> list[tuple[str, float]]:
        found = await inspectors[number].ask_for("status", {"topics": True})
        topics: list[tuple[str, float]] = found["topics"]
        return topics

    assert [await busiest(0), await busiest(1)] == [[], []]
    for number in range(10):
        sender.send(p.publish("a", b"x", qos, number + 1 if qos else None))
        await here.go(0.1)
    await here.go(1)
    assert len(payloads(reader.take())) == 10
    ((topic, rate),) = await busiest(0)
    assert (topic, rate > 0) == ("a", True)
    assert await busiest(1) == []


@pytest.mark.plain
@runs(two)
async def test_empty_messages_that_wait_to_be_routed_are_bounded(
    here: PartitionWorld, there: PartitionWorld, *, monkeypatch: pytest.MonkeyPatch
) -> None:
    exchange = there.broker.node.exchange
    assert exchange is not None
    frame = encode_frame(Qos0Messages([b"a/b"] * 10, [b""] * 10, [], retain=False))
    with monkeypatch.context() as patch:
        patch.setattr(qos0_exchange, "_UNROUTED", 100_000)
        patch.setattr(Publisher, "at_once", lambda *_: 0)
        for _ in range(1000):
            exchange.arrived(here.broker.node.options.node, frame)
        await there.calm()
        assert 0 < len(exchange._qos0._unrouted) < 100
    await here.go(1)
    assert not exchange._qos0._unrouted
    assert exchange._qos0._unrouted_bytes == 0


def test_messages_that_waited_for_the_log_are_sent_in_batches_of_permitted_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The gate joins what waits for one record: that may be more than NATS accepts at once."""
    sizes = []
    flush = qos0_exchange.Qos0Exchange._flush

    def flush_measured(self: qos0_exchange.Qos0Exchange) -> None:
        sizes.append(sum(map(len, self._frames)))
        flush(self)

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        worlds = [here, there]
        reader = await there.connect(name_in(worlds, 1), filters=[("t", 0)])
        sender = await here.connect(name_in(worlds, 0))
        sender.send(p.publish("t", b"first"))
        await here.go(3)
        reader.take()
        node = here.broker.node
        here.log.hold()
        assert node.exchange is not None
        sender.send(p.publish("other", b"x", 1, 1))
        node.exchange.await_proof()
        await here.calm()
        for number in range(100):
            sender.send(p.publish("t", b"%d " % number + bytes(8000)))
            await here.calm()
        await here.go(0.1)
        assert not reader.take()
        here.log.release()
        await here.go(1)
        got = [int(payload.split()[0]) for payload in payloads([*reader.take()])]
        assert got == [*range(100)]
        assert max(sizes) <= qos0_exchange._SENT_AT_ONCE

    monkeypatch.setattr(qos0_exchange.Qos0Exchange, "_flush", flush_measured)
    two(scenario)


def test_the_audit_finds_messages_that_were_not_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    publish = EffectRecorder._publish_parts
    lost = iter([False, True])

    def forgetful(self: EffectRecorder, name: str, taken: TakenMessages, count: int) -> None:
        if not next(lost, False):
            publish(self, name, taken, count)

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        worlds = [here, there]
        sender = await here.connect(name_in(worlds, 0))
        await there.connect(name_in(worlds, 1), filters=[("a/+", 1)])
        for number in range(3):
            sender.send(p.publish("a/b", b"%d" % number, 1, number + 1))
            await here.go(1)

    monkeypatch.setattr(EffectRecorder, "_publish_parts", forgetful)
    with pytest.raises(AssertionError, match=r"lacks the message .* which matches a/\+ of c"):
        two(scenario)


async def publish_while_away(here: PartitionWorld, there: PartitionWorld) -> SimClient:
    """Send two messages for a client of ``there``, of which one expires while that is down."""
    worlds = [here, there]
    sender = await here.connect(name_in(worlds, 0), mqtt5=True)
    reader = await there.connect(name_in(worlds, 1), filters=[("a/#", 1)])
    await here.go(1)
    await there.crash()
    sender.mqtt5 = False  # what follows is at level 5 already
    for number, seconds in ((1, 2), (2, 100)):
        properties = ((mqtt5_packets.MESSAGE_EXPIRY, seconds),)
        sender.send(mqtt5_packets.publish("a/b", b"%d" % seconds, 1, number, properties=properties))
    await here.go(6)
    return reader


@runs(two)
async def test_a_message_that_expires_before_another_log_takes_it_is_recorded_and_counted(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    await publish_while_away(here, there)
    await there.start()
    await there.go(2)
    node = there.broker.node
    state = node.state.sessions.peek(name_in([here, there], 1))
    assert state is not None
    assert state.queued + len(state.inflight) == 1
    assert node.dropped["expired"] == 1
    (told,) = [
        event for event in there.disk.events() if isinstance(event, Followed) and event.expired
    ]
    (ref,) = from_runs(told.expired)
    published = here.disk.stream.history[ref >> INDEX_BITS]
    assert ref <= told.through
    assert b"2100" in published  # the payloads of both


@pytest.mark.parametrize("mutant", ["says so", "says nothing"])
def test_a_message_that_is_taken_for_expired_too_early_is_found(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With ``foldmq log verify``."""
    is_gone, record = EffectRecorder._is_gone, FollowedPositions.record

    def early(self: EffectRecorder, name: str, taken: TakenMessages, at: int, passed: int) -> bool:
        return is_gone(self, name, taken, at, passed + 1000)

    def silent(self: FollowedPositions, name: str, through: int, link: str, *_: object) -> None:
        record(self, name, through, link)

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        await publish_while_away(here, there)
        await there.start()
        await there.go(2)

    monkeypatch.setattr(EffectRecorder, "_is_gone", early)
    if mutant == "says nothing":
        monkeypatch.setattr(FollowedPositions, "record", silent)
    what = "as expired, but it had not expired" if mutant == "says so" else "lacks the message"
    with pytest.raises(AssertionError, match=what):
        two(scenario)


@runs(two)
async def test_retained_messages_are_those_of_all_logs(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds = [here, there]
    first = await here.connect(name_in(worlds, 0))
    second = await there.connect(name_in(worlds, 1))
    for number in range(10):
        sender = (first, second)[number % 2]
        sender.send(
            p.publish("r/a", b"%d" % number, number % 2, number + 1, retain=True)
            if number % 2
            else p.publish("r/a", b"%d" % number, retain=True)
        )
        await here.go(0.3)
    first.send(p.publish("r/b", b"x", 1, 90, retain=True))
    await here.go(1)
    second.send(p.publish("r/b", b"", 1, 91, retain=True))
    await here.go(1)
    for number, world in enumerate(worlds):
        reader = await world.connect(name_in(worlds, number, "r"), filters=[("r/#", 1)])
        found = [packet for packet in reader.received if isinstance(packet, Publish)]
        assert [(one.topic, one.payload, one.retain) for one in found] == [("r/a", b"9", True)]


@runs(two)
async def test_a_retained_message_that_an_operator_removes_goes_from_all_logs(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    sender = await here.connect(name_in([here, there], 0))
    sender.send(p.publish("a/b", b"1", 1, 1, retain=True))
    await here.go(1)
    retained = there.broker.node.state.retained
    assert retained.get("a/b") is not None
    await change(here, "clear_retained", topics=["a/b"])
    await here.go(1)
    assert retained.get("a/b") is None


@runs(two)
async def test_messages_retained_at_the_same_time_end_alike_everywhere(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds = [here, there]
    senders = [await one.connect(name_in(worlds, at)) for at, one in enumerate(worlds)]
    for number in range(30):
        for at, sender in enumerate(senders):
            payload = b"" if number % 7 == at else b"%d-%d" % (at, number)
            sender.send(p.publish(f"r/{number % 3}", payload, 1, number + 1, retain=True))
        if number % 4 == 0:
            await here.go(0.002)
    await here.go(2)
    kept = [
        {one.topic: one.payload for one in world.broker.node.state.retained.all()}
        for world in worlds
    ]
    assert kept[0] == kept[1]


@runs(two)
async def test_a_will_and_a_clean_session_reach_the_other_log(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    worlds = [here, there]
    reader = await there.connect(name_in(worlds, 1), filters=[("w/#", 2)])
    for qos in range(3):
        dying = await here.connect(
            name_in(worlds, 0), clean=True, will=p.Will(f"w/{qos}", b"gone", qos)
        )
        dying.drop()
        await here.go(1)
    found = [packet for packet in reader.take() if isinstance(packet, Publish)]
    assert [(one.topic, one.qos) for one in found] == [("w/0", 0), ("w/1", 1), ("w/2", 2)]


@runs(two)
async def test_an_assigned_client_identifier_belongs_to_the_log(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    for _ in range(8):
        await there.connect("", clean=True)
    names = [*there.broker.node.state.sessions.names()]
    assert len(names) == 8
    assert {world_of([here, there], name) for name in names} == {there}


@runs(two)
async def test_a_client_of_another_log_is_refused(
    here: PartitionWorld, there: PartitionWorld
) -> None:
    client = SimClient(here)
    client.send(p.connect(name_in([here, there], 1)))
    await here.go(0.1)
    (answer,) = client.take()
    assert isinstance(answer, p.Connack)
    assert answer.code == 3


def test_the_log_is_not_cut_before_the_others_have_taken_it() -> None:
    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        worlds = [here, there]
        sender = await here.connect(name_in(worlds, 0))
        await there.connect(name_in(worlds, 1), filters=[("a", 1)])
        await there.crash()
        for number in range(200):
            sender.send(p.publish("a", b"." * 500, 1, number % 100 + 1))
            await here.go(0.02)
        await here.go(20)
        assert here.log.first == 1
        await there.start()
        await here.go(30)
        assert here.log.first > 1
        state = there.broker.node.state.sessions.peek(name_in(worlds, 1))
        assert state is not None
        assert state.queued + len(state.inflight) == 200

    with small_checkpoints():
        two(scenario, keep=0.0, keep_bytes=20_000)


SEEDS = range(200, 200 + max(8, int(os.environ.get("FOLDMQ_SEEDS", "0")) // 5))
AT_EVERY_SAVE = 4
"""``make check`` runs this many of them, too."""


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(seed, marks=[pytest.mark.slow] if number >= AT_EVERY_SAVE else [])
        for number, seed in enumerate(SEEDS)
    ],
)
def test_a_random_run_of_several_logs_keeps_every_guarantee(seed: int) -> None:
    run(seed)


@pytest.mark.long
def test_a_long_queue_of_a_device_may_be_delivered_slowly() -> None:
    """For ten minutes, one message after the other."""
    run(1294)


def _two_turns(positions: FollowedPositions, name: str, through: int, link: str) -> None:
    """Record a position in a turn of its own."""
    positions._through[name] = through, link
    positions._recorded[name] = through
    node = positions._node
    asyncio.get_running_loop().call_later(
        0.001, lambda: (node.emit(Followed(name, through, link)), node.kernel.wake())
    )


def _too_early(exchange: LogExchange, name: str, taken: Taken) -> None:
    """Record the position before the messages."""
    link = taken.links[taken.through >> INDEX_BITS]
    exchange._positions.record(name, taken.through, link)
    exchange._node.kernel.wake()


def run_many(first: int) -> None:
    for seed in (first, *range(MAX_SEEDS)):
        run(seed)


MUTANTS = {
    "position later": 8,
    "position earlier": 8,
    "cut at once": 8,
    "no position with a subscription": 11,
    "skips messages that match": 21,
    "skips retained messages": 3,
}
"""What is wrong with the exchange, and a run that detects it, which is tried first."""


@pytest.mark.parametrize("mutant", MUTANTS)
def test_an_exchange_that_violates_a_rule_is_detected(
    mutant: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if mutant == "position later":
        monkeypatch.setattr(FollowedPositions, "record", _two_turns)
    elif mutant == "position earlier":
        taken = LogExchange._taken

        async def early(self: LogExchange, name: str, work: Taken) -> None:
            _too_early(self, name, work)
            await asyncio.sleep(0.01)
            await taken(self, name, work)

        monkeypatch.setattr(LogExchange, "_taken", early)
    elif mutant == "cut at once":
        monkeypatch.setattr(FollowedPositions, "is_taken", lambda _self, _through: True)
    elif mutant == "skips messages that match":
        monkeypatch.setattr(LogExchange, "_may_skip", lambda _self, _name, _skipped: True)
    elif mutant == "skips retained messages":
        effects_in = skipped_records.effects_in

        def not_retained(*arguments: Any) -> Iterator[Any]:
            effects = effects_in(*arguments)
            return (effect for effect in effects if not getattr(effect, "retain", False))

        monkeypatch.setattr(skipped_records, "effects_in", not_retained)
    else:
        monkeypatch.setattr(FollowedPositions, "settle", lambda _self, but="": None)
    with pytest.raises((AssertionError, FoldmqError)):
        run_many(MUTANTS[mutant])


def test_how_far_a_log_is_behind_another_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the status, and after some seconds a problem of doctor, until all was taken."""
    taken, goes_on = LogExchange._taken, asyncio.Event()

    async def waits(self: LogExchange, name: str, messages: Taken) -> None:
        await goes_on.wait()
        await taken(self, name, messages)

    async def scenario(here: PartitionWorld, there: PartitionWorld) -> None:
        async def advice() -> list[str]:
            found = await ask(there, "status")
            rows = found["other_logs"]
            assert len(rows) <= 1
            given = [one for one in advise_on_broker(found, ()) if "is behind log" in one.title]
            return [f"{one.severity} {one.title}: {one.evidence}" for one in given]

        goes_on.set()
        await there.connect(name_in([here, there], 1), filters=[("t", 1)])
        sender = await here.connect(name_in([here, there], 0, "s"))
        sender.send(p.publish("t", b"0", 1, 1))
        await here.go(30)
        assert await advice() == []
        goes_on.clear()
        for number in range(2, 5):
            sender.send(p.publish("t", b"%d" % number, 1, number))
            await here.go(1)
        (row,) = (await ask(there, "status"))["other_logs"]
        assert row["log"] == here.name
        assert 2 <= row["records"] <= 4
        await here.go(5)
        (warning,) = await advice()
        assert warning.startswith(f"warning is behind log {here.name}: ")
        await here.go(60)
        assert (await advice())[0].startswith("problem ")
        goes_on.set()
        await here.go(2)
        assert await advice() == []

    monkeypatch.setattr(LogExchange, "_taken", waits)
    two(scenario)
