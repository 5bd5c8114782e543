"""Replays: nothing is missing or twice at the seam, over crashes, cuts and lost permissions."""

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest
from harness import mqtt5_packets as p5
from harness import packets as p
from harness.packets import Publish, Pubrel
from harness.plainaudit import violations
from harness.salvages import salvaged

from actors.access.rules import Permissions, Rule
from actors.inspection.problems import ProblemSearch
from actors.limits.limit_options import LimitOptions
from actors.maintenance import retention
from actors.replay.log_reader import LogReader
from actors.replay.replay import _AT_GATE
from actors.replay.selection import BYTES_AT_ONCE, LogRecord
from eventstore.format.events import Delivered, MessagePublished, ReplayReached
from eventstore.format.positions import count_runs
from eventstore.format.records import Record, decode_record
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.log_index import LogIndex
from projections.past.segment_builder import SegmentBuilder
from simulation.fold import compare
from simulation.log_cuts import cuts
from simulation.network import Client5
from simulation.replaying_clients import user
from simulation.stored_world import StoredWorld
from simulation.world import STREAM, SimClient, World, in_world, simulate

FILTER = "$replay/all/t/#"


class Reader(SimClient):
    """Acknowledges what it gets, at once, and keeps it: QoS 2 messages once."""

    got: list[bytes]
    pending: dict[int, bytes]

    def on_packet(self, packet: p.Packet) -> None:
        if isinstance(packet, Publish) and packet.topic.startswith("t/"):
            if packet.qos == 2 and packet.packet_id in self.pending:
                assert self.pending[packet.packet_id] == packet.payload
                assert packet.dup
            else:
                self.got.append(packet.payload)
            if packet.qos == 1:
                self.send(p.puback(packet.packet_id or 0))
            elif packet.qos == 2 and packet.packet_id is not None:
                self.pending[packet.packet_id] = packet.payload
                self.send(p.pubrec(packet.packet_id))
        elif isinstance(packet, Pubrel):
            self.pending.pop(packet.packet_id, None)
            self.send(p.pubcomp(packet.packet_id))


def reader(
    world: World, got: list[bytes], pending: dict[int, bytes], *filters: tuple[str, int]
) -> Reader:
    """Connect; ``got`` and ``pending`` are what the client keeps over its connections."""
    client = Reader(world)
    client.got, client.pending = got, pending
    client.send(p.connect("r", clean=False))
    if filters:
        client.send(p.subscribe(1, *filters))
    return client


def numbers(count: int) -> list[bytes]:
    return [b"%d" % number for number in range(count)]


async def publish(world: World, client: SimClient, payloads: Iterable[bytes], qos: int) -> None:
    """Publish, each message in a turn of its own."""
    for payload in payloads:
        identifier = int(payload) + 1
        client.send(p.publish(f"t/{identifier % 3}", payload, qos, identifier))
        await asyncio.sleep(0.001)
        if qos == 2:
            client.send(p.pubrel(identifier))
    await world.go(0.05)


def check_log(world: World) -> None:
    """A cursor is in the turn of its deliveries, and counts them; the audit finds nothing."""
    turn: list[object] = []
    for record in world.disk.decoded():
        turn += [event for _, event in record.events()]
        if not record.last:
            continue
        sent = sum(
            count_runs(event.refs)
            for event in turn
            if isinstance(event, Delivered) and event.filter.startswith("$replay/")
        )
        counted = sum(event.sent for event in turn if isinstance(event, ReplayReached))
        assert sent <= counted
        turn = []
    history = sorted(world.disk.stream.history.items())
    assert not violations([decode_record(at, data) for at, data in history])
    compare(world)


@pytest.mark.parametrize("cutting", [False, True])
@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("before", range(0, 24, 3))
def test_the_seam(before: int, qos: int, cutting: bool) -> None:
    async def whole() -> None:
        world = World()
        world.cutting = cutting
        async with world.running():
            sender = await world.connect("s")
            got: list[bytes] = []
            task = asyncio.create_task(publish(world, sender, numbers(24), qos))
            while len([packet for packet in sender.received if packet]) < before:  # noqa: ASYNC110
                await asyncio.sleep(0.0002)
            reader(world, got, {}, (FILTER, qos))
            await task
            await world.go(0.5)
            assert got == numbers(24)
            check_log(world)

    simulate(whole)


@pytest.mark.parametrize("pause", [0.0005, 0.002, 0.01])
@in_world(max_ack_pending=3)
async def test_the_seam_with_slow_reading(
    world: World, monkeypatch: pytest.MonkeyPatch, pause: float
) -> None:
    """Records come from the stream while the journal passes on newer ones."""
    decoded = LogReader._decoded

    async def slowly(self: LogReader, record: Record) -> LogRecord:
        await asyncio.sleep(pause)
        return await decoded(self, record)

    monkeypatch.setattr(LogReader, "_decoded", slowly)
    sender = await world.connect("s")
    got: list[bytes] = []
    await publish(world, sender, numbers(40), 2)
    reader(world, got, {}, (FILTER, 2))
    more = [b"%d" % number for number in range(40, 120)]
    await publish(world, sender, more, 2)
    await world.go(3)
    assert got == numbers(120)
    check_log(world)


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("steps", range(0, 40, 2))
@in_world()
async def test_kill_at_each_step(world: World, steps: int, qos: int) -> None:
    """QoS 2 messages arrive once, QoS 1 messages at least once, none is lost."""
    sender = await world.connect("s")
    await publish(world, sender, numbers(8), qos)
    got: list[bytes] = []
    pending: dict[int, bytes] = {}
    world.fuse = steps
    reader(world, got, pending, (FILTER, qos))
    await asyncio.sleep(0.02)
    world.fuse = None
    if not world.up:
        await world.crash()
        await world.start()
    else:
        await world.restart()
    # The SUBSCRIBE may be lost with the first broker; a second one continues.
    reader(world, got, pending, (FILTER, qos))
    await world.go(0.5)
    check_log(world)
    if qos == 2:
        assert got == numbers(8)
    else:
        assert list(dict.fromkeys(got)) == numbers(8)


@pytest.mark.parametrize("steps", [None, *range(0, 24, 3)])
@in_world(max_ack_pending=1)
async def test_the_last_message_of_each_topic_over_kills(world: World, steps: int | None) -> None:
    sender = await world.connect("s")
    await publish(world, sender, numbers(8), 2)
    got: list[bytes] = []
    pending: dict[int, bytes] = {}
    world.fuse = steps
    reader(world, got, pending, ("$replay/last/t/#", 2))
    await asyncio.sleep(0.02)
    world.fuse = None
    if not world.up:
        await world.crash()
        await world.start()
    reader(world, got, pending, ("$replay/last/t/#", 2))
    await world.go(0.5)
    assert got == [b"5", b"6", b"7"]
    again = await world.connect("s")
    await publish(world, again, [b"8"], 2)
    await world.go(0.5)
    assert got == [b"5", b"6", b"7", b"8"]
    check_log(world)


@pytest.mark.parametrize("start", ["0s", "new", "1h", "all"])
@in_world()
async def test_beginnings_beside_a_publisher(world: World, start: str) -> None:
    """The audit knows what each of them has to send."""
    sender = await world.connect("s")
    got: list[bytes] = []
    task = asyncio.create_task(publish(world, sender, numbers(40), 1))
    await asyncio.sleep(0.0105)
    reader(world, got, {}, (f"$replay/{start}/t/#", 1))
    await task
    await world.go(0.5)
    assert got == numbers(40)[-len(got) :]
    assert len(got) >= 20
    check_log(world)


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_world()
async def test_no_output_before_its_cursor_is_on_disk(world: World, qos: int) -> None:
    got: list[bytes] = []
    reader(world, got, {}, ("$replay/new/t/#", qos))
    sender = await world.connect("s")
    await world.go(0.1)
    world.log.hold()
    sender.send(p.publish("t/a", b"x", 1, 1))
    await world.go(0.1)
    world.log.commit(1)  # the publication
    await world.go(0.1)
    assert world.log.waiting, "the cursor is not on its way"
    assert got == []
    world.log.release()
    await world.go(0.1)
    assert got == [b"x"]


@in_world(max_ack_pending=1)
async def test_a_small_window_loses_nothing(world: World) -> None:
    sender = await world.connect("s")
    await publish(world, sender, numbers(10), 1)
    got: list[bytes] = []
    reader(world, got, {}, (FILTER, 1))
    await publish(world, sender, [b"%d" % number for number in range(10, 14)], 1)
    await world.go(0.5)
    assert got == numbers(14)


@in_world(write_high=1000)
async def test_a_client_that_does_not_read(world: World) -> None:
    sender, other = await world.connect("s"), await world.connect("o", filters=[("t/#", 1)])
    got: list[bytes] = []
    client = reader(world, got, {}, ("$replay/all/t/#", 0))
    await world.go(0.1)
    client.transport.stall()
    await publish(world, sender, numbers(400), 1)
    assert len([packet for packet in other.take() if isinstance(packet, Publish)]) == 400
    gated = len(client.transport.buffer)
    assert gated < 20_000, "all of it is written to a client that does not read"
    client.transport.unstall()
    await world.go(2)
    assert got == numbers(400)


@in_world()
async def test_takeover_continues(world: World) -> None:
    sender = await world.connect("s")
    await publish(world, sender, numbers(3), 2)
    got: list[bytes] = []
    pending: dict[int, bytes] = {}
    reader(world, got, pending, (FILTER, 2))
    await world.go(0.1)
    reader(world, got, pending)
    await publish(world, sender, [b"3", b"4"], 2)
    await world.go(0.2)
    assert got == numbers(5)
    check_log(world)


@in_world()
async def test_unsubscribe_with_messages_in_flight(world: World) -> None:
    sender = await world.connect("s")
    await publish(world, sender, numbers(3), 1)
    client = await world.connect("r", filters=[(FILTER, 1)])
    await world.go(0.1)
    found = [packet for packet in client.take() if isinstance(packet, Publish)] or []
    client.send(p.unsubscribe(2, FILTER))
    await world.go(0.1)
    client.send(*(p.puback(one.packet_id or 0) for one in found))
    await publish(world, sender, [b"3"], 1)
    await world.go(0.1)
    assert not [packet for packet in client.take() if isinstance(packet, Publish)]
    state = world.broker.node.state.sessions.live["r"]
    assert not state.subscriptions
    check_log(world)


def allowing(*history: str) -> Permissions:
    rules = [Rule(allow=True, publish=True, subscribe=True, filter="#")]
    rules += [
        Rule(allow=True, publish=False, subscribe=False, filter=one, history=True)
        for one in history
    ]
    return Permissions(rules)


def test_a_permission_that_goes_and_comes_back() -> None:
    async def whole() -> None:
        world = World()
        world.permissions = allowing("t/#")
        async with world.running():
            sender = await world.connect("s")
            await publish(world, sender, numbers(3), 1)
            got: list[bytes] = []
            reader(world, got, {}, (FILTER, 1), ("$replay/all/#", 1))
            await world.go(0.1)
            assert got == numbers(3)
            broker = world.broker
            broker.reload(world.options, broker.admission.authenticator, allowing("other/#"))
            await world.go(0.1)
            await publish(world, sender, [b"3", b"4"], 1)
            await world.go(3)
            assert got == numbers(3), "sent without permission"
            held = broker.node.state.sessions.live["r"].replays[FILTER].replay
            assert held is not None
            assert held.state == "withheld"
            broker.reload(world.options, broker.admission.authenticator, allowing("#"))
            await world.go(3)
            assert got == numbers(5)
            check_log(world)

    simulate(whole)


def is_warned(world: World) -> bool:
    """Whether ``foldmq doctor`` says that a replay loses messages."""
    problems = ProblemSearch(world.broker.node)
    assert not any(problems.run())
    found = {"client": "r", "code": "replay_behind", "filter": FILTER, "connected": False}
    return found in problems._found


@in_world(keep=0.0, keep_bytes=40000)
async def test_a_cut_leaves_a_gap_that_is_told(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "_MIN", 2000)
    sender = await world.connect("s")
    got: list[bytes] = []
    pending: dict[int, bytes] = {}
    client = reader(world, got, pending, (FILTER, 1))
    await publish(world, sender, numbers(3), 1)
    await world.go(0.3)
    client.drop()
    await world.go(0.1)
    await publish(world, sender, [b"3"], 1)
    warned = False
    for number in range(400):
        sender.send(p.publish("noise", bytes(200), 1, number + 1000))
        await world.go(0.05)
        warned = warned or is_warned(world)
        if not warned:
            assert world.disk.stream.first == 1
    assert warned
    assert world.disk.stream.first > 50
    reader(world, got, pending)
    await world.go(0.2)
    await publish(world, sender, [b"4"], 1)
    await world.go(0.2)
    assert got == [b"0", b"1", b"2", b"4"]
    reached = world.disk.events(ReplayReached)
    gaps = [event.gap[""] for event in reached if event.gap]
    assert len(gaps) == 1
    assert gaps[0][1] >> 20 in [cut.first - 1 for cut in cuts(world)]
    await world.go(3)  # a checkpoint may be written
    check_log(world)


@in_world(max_ack_pending=1)
async def test_a_cut_lets_a_live_replay_pass(world: World) -> None:
    """It has a few messages left when the log is cut after them: it gets them all."""
    sender = await world.connect("s")
    slow = await world.connect("r", filters=[(FILTER, 1)])
    await publish(world, sender, numbers(12), 1)
    retention = world.broker.retention
    await retention.checkpoint()
    cutting = asyncio.create_task(retention.cut(world.broker.node.state.checkpoints[-1], "keep"))
    got: list[bytes] = []
    while len(got) < 12:
        await world.go(0.02)
        messages = [packet for packet in slow.take() if isinstance(packet, Publish)]
        assert messages, "the cut has taken messages from it"
        got += [message.payload for message in messages]
        slow.send(*(p.puback(message.packet_id or 0) for message in messages))
    await cutting
    assert got == numbers(12)
    assert cuts(world)
    assert world.disk.stream.first > 12
    check_log(world)


@in_world(keep=0.0, keep_bytes=40000, max_ack_pending=1)
async def test_a_cut_below_a_replay_that_stands_still(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It must not refer to messages of the removed part that are not repeated behind the cut."""
    monkeypatch.setattr(retention, "_MIN", 2000)
    sender = await world.connect("s")
    await publish(world, sender, numbers(3), 2)
    stuck = await world.connect("r", filters=[(FILTER, 1)])
    await world.go(0.1)
    (first,) = [packet for packet in stuck.received if isinstance(packet, Publish)]
    for number in range(400):
        sender.send(p.publish("noise", bytes(200), 1, number + 1000))
        await world.go(0.05)
        if number % 100 == 50:  # it takes one message while the log is being cut
            found = [packet for packet in stuck.take() if isinstance(packet, Publish)]
            stuck.send(*(p.puback(one.packet_id or 0) for one in found))
    assert world.disk.stream.first > 50
    await world.restart()
    got: list[bytes] = []
    reader(world, got, {})
    await world.go(0.5)
    again = await world.connect("s")
    await publish(world, again, [b"7"], 2)
    await world.go(0.5)
    assert first.payload == b"0"
    assert got[-1] == b"7"
    history = sorted(world.disk.stream.history.items())
    assert not violations([decode_record(at, data) for at, data in history])


@in_world()
async def test_a_damaged_record_ends_the_replay_alone(world: World) -> None:
    sender = await world.connect("s")
    await publish(world, sender, numbers(12), 1)
    records = world.disk.stream.messages
    published = [
        (at, event.count)
        for at, data in sorted(records.items())
        for _, event in decode_record(at, data).events()
        if isinstance(event, MessagePublished)
    ]
    at, count = published[-2]
    records[at] = records[at][:-1] + bytes([records[at][-1] ^ 1])
    got: list[bytes] = []
    reader(world, got, {}, (FILTER, 1))
    await world.go(0.5)
    held = world.broker.node.state.sessions.live["r"].replays[FILTER].replay
    assert held is not None
    assert held.state == "damaged"
    problems = ProblemSearch(world.broker.node)
    assert not [*problems.run()]
    assert {"client": "r", "code": "replay_stopped", "filter": FILTER, "state": "damaged"} in (
        problems._found
    )
    assert got == numbers(12 - count - published[-1][1])
    sender.send(p.publish("t/a", b"x", 1, 77))
    await world.go(0.1)
    assert p.Puback(77) in sender.take()


@in_world()
async def test_output_that_waits_for_the_disk_is_bounded(world: World) -> None:
    sender = await world.connect("s")
    for number in range(60):
        sender.send(p.publish("t/1", bytes(60_000), 1, number + 1))
        await world.go(0.01)
    client = await world.connect("r")
    await world.go(0.5)
    world.log.hold()
    client.send(p.subscribe(1, (FILTER, 0)))
    await world.go(1)
    (replay,) = world.broker.replays.connected
    assert replay.connection is not None
    assert _AT_GATE <= replay.connection.gated < _AT_GATE + 2 * BYTES_AT_ONCE
    world.log.release()
    await world.go(1)
    assert len([packet for packet in client.take() if isinstance(packet, Publish)]) == 60


@in_world(bounds=LimitOptions(max_replays=1))
async def test_a_resumed_replay_waits_for_a_place(world: World) -> None:
    sender = await world.connect("s")
    await publish(world, sender, numbers(3), 1)
    got: list[bytes] = []
    reader(world, got, {}, (FILTER, 1)).drop()
    await world.go(0.1)
    other = await world.connect("o", filters=[("$replay/new/t/#", 0)])
    reader(world, got, {})
    await publish(world, sender, [b"3"], 1)
    before = len(got)
    assert before < 4
    assert world.broker.replays.states() == {"live": 1, "waiting": 1}
    other.drop()
    await world.go(0.5)
    assert list(dict.fromkeys(got)) == numbers(4)


@in_world()
async def test_many_replays_of_the_same_past_read_it_once(world: World) -> None:
    sender = await world.connect("s")
    await publish(world, sender, numbers(50), 1)
    all_got: list[list[bytes]] = []
    for number in range(20):
        got: list[bytes] = []
        client = Reader(world)
        client.got, client.pending = got, {}
        client.send(p.connect(f"r{number}", clean=True), p.subscribe(1, (FILTER, 1)))
        all_got.append(got)
    await world.go(1)
    assert all(got == numbers(50) for got in all_got)
    records = len(world.disk.records)
    assert world.broker.replays.reader.records_read < 2 * records


def index(world: World, path: Path, last: int, stream: str = STREAM) -> None:
    """Index the log up to a record, some records in a segment."""
    files = IndexFiles(path)
    path.mkdir()
    builder = SegmentBuilder(stream, 1, LogIndex((), 1), None)
    for record in world.disk.decoded()[:last]:
        builder.take(record)
        if builder.records >= 50:
            files.append(*builder.finish())
            builder.adopt(LogIndex(files.segments, 1))
    files.append(*builder.finish())
    files.close()


async def noise(world: World, client: SimClient, count: int) -> None:
    for number in range(count):
        client.send(p.publish(f"noise/{number % 7}", b"n", 1, 5000 + number))
        await asyncio.sleep(0.004)
    await world.go(0.05)


async def replayed(
    world: World, topic_filter: str, qos: int, path: Path
) -> tuple[list[bytes], int]:
    """Return what a new client gets, with the index in a directory, and the records read for it."""
    log_reader = world.broker.replays.reader
    log_reader.index.use(path, STREAM)
    before = log_reader.records_read
    client, got = Reader(world), list[bytes]()
    client.got, client.pending = got, {}
    client.send(p.connect(f"i{before}", clean=True), p.subscribe(1, (topic_filter, qos)))
    await world.go(2)
    client.drop()
    await world.go(0.1)
    return got, log_reader.records_read - before


async def past_with_noise(world: World) -> int:
    """Publish few messages between others, one of them released late; return the last record."""
    sender = await world.connect("s")
    await publish(world, sender, numbers(3), 1)
    await noise(world, sender, 60)
    sender.send(p.publish("t/late", b"late", 2, 900))
    await noise(world, sender, 200)
    await publish(world, sender, [b"3", b"4"], 2)
    await noise(world, sender, 100)
    sender.send(p.pubrel(900))
    await noise(world, sender, 150)
    last = len(world.disk.records)
    await publish(world, sender, [b"5"], 1)
    return last


FILTERS = [
    "$replay/all/t/#",
    "$replay/last/t/#",
    "$replay/all/+/0",
    "$replay/1h/t/late",
    "$replay/200/t/#",
    "$replay/all..400/t/#",
    "$replay/all..@1800000001/t/#",
    "$replay/@1800000001/t/#",
]


@pytest.mark.parametrize("qos", [0, 1, 2])
@in_world()
async def test_an_index_changes_only_what_is_read(world: World, tmp_path: Path, qos: int) -> None:
    last = await past_with_noise(world)
    index(world, tmp_path / "index", last)
    for topic_filter in FILTERS:
        got, read = await replayed(world, topic_filter, qos, tmp_path / "none")
        indexed, fewer = await replayed(world, topic_filter, qos, tmp_path / "index")
        assert indexed == got, topic_filter
        assert got, topic_filter
        assert fewer < read, topic_filter
    assert fewer < last / 2
    check_log(world)


@pytest.mark.parametrize("indexed", [False, True])
def test_a_part_that_was_given_up_is_told(tmp_path: Path, indexed: bool) -> None:
    """The first message behind it says so, with and without an index; the audit agrees."""

    async def whole() -> None:
        async with StoredWorld(tmp_path / "stored").running() as world:
            last = await past_with_noise(world)
            records = dict(world.disk.stream.history)
            await world.crash()
            lost = range(150, 160)
            made = salvaged(tmp_path, records, lost, world.mark().read())
            world.move(made)
            world.mark().write(max(made), decode_record(max(made), made[max(made)]).link)
            await world.start()
            index(world, tmp_path / "index", last)
            if indexed:
                world.broker.replays.reader.index.use(tmp_path / "index", STREAM)
            client = Client5(world)
            client.send(p5.connect("o", clean=True), p5.subscribe(1, ("$replay/all/t/#", 1)))
            await world.go(2)
            told = [user(message) for message in client.messages()]
            records_of = [int(names["foldmq-position"].partition(".")[0]) for names in told]
            assert min(records_of) < 150
            behind = min(at for at in records_of if at > 159)
            gaps = {at: names.get("foldmq-gap") for at, names in zip(records_of, told, strict=True)}
            assert {at: gap for at, gap in gaps.items() if gap} == {behind: "150.0..159"}
            check_log(world)

    simulate(whole)


@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_replay_that_begins_or_ends_in_what_was_given_up(tmp_path: Path, qos: int) -> None:
    """Records 30 to 39 are lost: what it says with messages, and in notices of its state."""

    async def whole() -> None:
        async with StoredWorld(tmp_path / "stored").running() as world:
            await publish(world, await world.connect("s"), numbers(60), 1)
            await world.crash()
            records = dict(world.disk.stream.history)
            before, within = (decode_record(at, records[at]).time_ms for at in (25, 34))
            made = salvaged(tmp_path, records, range(30, 40), world.mark().read())
            world.move(made)
            world.mark().write(max(made), decode_record(max(made), made[max(made)]).link)
            await world.start()
            for name, start, first, told, notices in (
                ("all", "all", 3, {40: "30.0..39"}, ["30.0..39"]),
                ("until", "all..33", 3, {}, ["30.0..33"]),
                ("from", f"@{within / 1000:.3f}", 40, {40: "30.0..39"}, ["30.0..39"]),
                ("before", f"@{before / 1000:.3f}..36", 25, {}, ["30.0..36"]),
                ("behind", "45", 46, {}, []),
                ("last", "last", 60, {60: "30.0..39"}, []),
            ):
                client = Client5(world)
                filters = ("$replay/state", 0), (f"$replay/{start}/t/#", qos)
                client.send(p5.connect(name, clean=True), p5.subscribe(1, *filters))
                await world.go(2)
                gaps: dict[int, str] = {}
                seen, states = [], []
                for message in client.messages():
                    if message.topic == "$replay/state":
                        states.append(json.loads(message.payload).get("gap"))
                        continue
                    names = user(message)
                    seen.append(int(names["foldmq-position"].partition(".")[0]))
                    if "foldmq-gap" in names:
                        gaps[seen[-1]] = names["foldmq-gap"]
                assert seen[0] == first, name
                assert gaps == told, name
                assert [gap for gap in states if gap] == notices, name
                client.drop()
                await world.go(0.1)
            check_log(world)

    simulate(whole)


@pytest.mark.parametrize("damage", ["block", "end", "other log"])
@in_world()
async def test_an_unusable_index_is_not_used(world: World, tmp_path: Path, damage: str) -> None:
    last = await past_with_noise(world)
    path = tmp_path / "index"
    index(world, path, last, "FOLDMQ_LOG_b" if damage == "other log" else STREAM)
    for file in path.iterdir():
        data = bytearray(file.read_bytes())
        if damage == "block":
            data[20] ^= 1
        elif damage == "end":
            data[-30] ^= 1
        file.write_bytes(data)
    got, _ = await replayed(world, FILTER, 1, path)
    assert got == [b"0", b"1", b"2", b"3", b"4", b"late", b"5"]
    check_log(world)
