"""Answers with the index of a log equal the answers of the whole log."""

import asyncio
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from harness.examples import examples
from harness.logs import LogBuilder
from hypothesis import given
from hypothesis import strategies as st
from indexedlogs import STREAM, IndexedSource, as_log, build, listed, node_of, told, use
from playedlogs import CHECKPOINT, MANY, Steps, fold_to, places, played, same
from randomnode import NAMES, Node

from cli.commands.why import find_messages
from eventstore.errors import CutOff
from eventstore.format.destination_events import ForwardRefused
from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import (
    InboundReplaced,
    MessagePublished,
    Queued,
    Redelivered,
    Released,
    SessionOpened,
    Subscribed,
)
from eventstore.format.node_events import CheckpointCompleted, LogCut, RetainedSnapshot
from eventstore.format.positions import (
    INDEX_BITS,
    Position,
    from_runs,
    index_of,
    position,
    sequence_of,
)
from eventstore.format.records import GENESIS
from eventstore.log.log_start import RecordedCut
from eventstore.reading import keys
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.indexed_reading import with_index
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import RecordsRead
from eventstore.reading.progress import silent
from eventstore.reading.segment import BadIndex
from projections.past import topic_records
from projections.past.event_reader import EventFilter
from projections.past.indexed_sessions import own_events, session_at
from projections.past.log_stories import WantedMessages
from projections.past.lost_records import lost_records
from projections.past.message_search import find_stories
from protocol.mqtt.topics import matches

TOPIC_FILTERS = ["a", "a/b", "c", "w", "a/#", "+", "#", "a/+", "none"]


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep many states, so that all ways to find one are taken, and always narrow topics."""
    monkeypatch.setattr(keys, "_RECORDS_BETWEEN", 3)
    monkeypatch.setattr(topic_records, "worth_reading", lambda _named, _others: True)


def segments_in(place: str) -> list[Path]:
    return sorted(Path(place).glob("*.index"))


class _Compared:
    """A log with an index, and the same log without."""

    def __init__(self, node: Node, path: Path, first: int, step: int, share: float) -> None:
        self.plain = IndexedSource(node, first)
        self.indexed = IndexedSource(node, first)
        whole = IndexedSource(node)
        last = max(1, round(share * whole.last))
        use(self.indexed, build(whole, path, last, step, restart=step % 2 == 0))

    async def states(self, name: str) -> int:
        """Compare the states of a session at all places; return how many came from the index."""
        known = 0
        for at in places(self.plain):
            point = LogPoint(sequence_of(at), index_of(at))
            found = await session_at(as_log(self.indexed), name, point)
            if found is None:
                continue
            known += 1
            node = fold_to(self.plain, at, name)
            assert not node.partial, at
            assert same(found.state, node.sessions.peek(name)), at
            assert found.carried == node.carried
        return known

    async def stories(self, client: str) -> None:
        """Compare the stories of all messages, and the latest ones on topics."""
        for sequence in range(self.plain.begin, self.plain.last + 1):
            for index, event in self.plain.record(sequence).events():
                if event.e == "MessagePublished":
                    at = position(sequence, index)
                    for ref in range(at, at + entries(event)):
                        await self._same(ref=ref, client=client)
        middle = position((self.plain.begin + self.plain.last) // 2, 0)
        for topic in TOPIC_FILTERS:
            for last in (1, 3):
                for until in (None, middle):
                    await self._same(
                        topic_filter=topic,
                        last=last,
                        client=client,
                        until=until,
                    )

    async def _same(self, **asked: Any) -> None:
        found = await find_stories(as_log(self.indexed), **asked)
        assert told(found) == told(await find_stories(as_log(self.plain), **asked)), asked

    async def events(self) -> None:
        """Compare the events of sessions and topics."""
        starts = {self.plain.begin, max(self.plain.begin, self.plain.last // 2)}
        for start in starts:
            for session in (None, *NAMES):
                for topic in (None, *TOPIC_FILTERS):
                    if session is None and topic is None:
                        continue
                    for types in ((), (SessionOpened, Redelivered)):
                        wanted = (types, session, topic)
                        found = await listed(self.indexed, EventFilter(*wanted), start)
                        assert found == await listed(self.plain, EventFilter(*wanted), start)


INDEXED = {
    "steps": MANY,
    "max_record": st.sampled_from([600, 1 << 20]),
    "step": st.integers(1, 6),
    "share": st.sampled_from([0.3, 0.8, 1.0]),
}


@given(**INDEXED)
async def test_states_of_sessions(steps: Steps, max_record: int, step: int, share: float) -> None:
    with tempfile.TemporaryDirectory() as place:
        compared = _Compared(played(steps, max_record), Path(place), 1, step, share)
        known = len(list(places(compared.plain)))
        for name in NAMES:
            assert await compared.states(name) == known


@pytest.mark.slow
@given(**INDEXED)
async def test_events_of_sessions_and_topics(
    steps: Steps, max_record: int, step: int, share: float
) -> None:
    with tempfile.TemporaryDirectory() as place:
        compared = _Compared(played(steps, max_record), Path(place), 1, step, share)
        await compared.events()


@pytest.mark.slow
@given(**INDEXED, client=st.sampled_from(NAMES))
async def test_stories_of_messages(
    steps: Steps, max_record: int, step: int, share: float, client: str
) -> None:
    with tempfile.TemporaryDirectory() as place:
        compared = _Compared(played(steps, max_record), Path(place), 1, step, share)
        await compared.stories(client)


@pytest.mark.slow
@given(**INDEXED, more=MANY, client=st.sampled_from(NAMES))
async def test_a_log_that_was_cut(
    steps: Steps, max_record: int, step: int, share: float, more: Steps, client: str
) -> None:
    node = played([*steps, *CHECKPOINT, *more], max_record)
    for checkpoint in node.live.checkpoints[:1]:
        first = checkpoint.begun >> INDEX_BITS
        with tempfile.TemporaryDirectory() as place:
            compared = _Compared(node, Path(place), first, step, share)
            for source in (compared.plain, compared.indexed):
                source.cut_at = max(
                    sequence
                    for sequence in range(first, source.last + 1)
                    for _, event in source.record(sequence).events()
                    if isinstance(event, CheckpointCompleted) and event.begun == checkpoint.begun
                )
            await compared.states(client)
            await compared.events()
            await compared.stories(client)


@pytest.mark.slow
@given(steps=MANY, more=MANY, step=st.integers(1, 4), data=st.data())
async def test_older_segments_are_removed(
    steps: Steps, more: Steps, step: int, data: st.DataObject
) -> None:
    node = played([*steps, *CHECKPOINT, *more], 600)
    with tempfile.TemporaryDirectory() as place:
        compared = _Compared(node, Path(place), 1, step, 1.0)
        files = build(compared.plain, Path(place), compared.plain.last, step)
        first = data.draw(st.integers(1, compared.plain.last), label="cut in the index before")
        files.shrink(1 << 40, first)
        use(compared.indexed, files)
        for name in NAMES:
            await compared.states(name)
        await compared.events()
        await compared.stories("ann")


async def test_events_on_a_topic_cost_as_many_records_as_concern_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each record has messages on 40 topics, to which ten later records refer."""
    monkeypatch.undo()
    log = LogBuilder("n")
    names = [f"s{number}" for number in range(40)]
    log.record(SessionOpened("p", False, False, 4))
    log.record(*(SessionOpened(name, False, False, 4) for name in names))
    log.record(*(Subscribed(name, [("#", 1)]) for name in names))
    for number in range(20):
        published = log.record(
            *(
                MessagePublished("p", 1, False, [f"t/{at}"], [], [number + 1], 1, at, 1)
                for at in range(40)
            ),
            payloads=[bytes(40)],
        )
        for start in range(0, 40, 4):
            log.record(
                *(
                    Queued(names[at], "#", 1, [log.at(published, at)], 1)
                    for at in range(start, start + 4)
                )
            )
    node = node_of(log.records)
    source, plain = IndexedSource(node), IndexedSource(node)
    use(source, build(source, tmp_path, source.last, 7))
    source.read = 0
    for wanted, count in ((EventFilter(topic="t/7"), 40), (EventFilter(topic="t/+"), 1600)):
        found = await listed(source, wanted, 1)
        assert len(found) == count
        if count == 40:
            assert len(set(source.asked)) == 40
            assert source.read == 0
    assert len(await listed(plain, EventFilter(topic="t/7"), 1)) == 40
    latest = IndexedSource(node)
    use(latest, build(latest, tmp_path / "again", latest.last, 7))
    last = await listed(latest, EventFilter(topic="t/7"), latest.last - 10)
    assert len(last) == 2
    assert len(set(latest.asked)) <= 12, "the older ones are not read for the latest"


async def test_a_turn_of_several_records_ends_a_session() -> None:
    """The publisher returns with a new session, in a turn that one record cannot hold."""
    node = played([("publish", "ann", 2), *CHECKPOINT, ("connect", "ann", 0)], 600)
    with tempfile.TemporaryDirectory() as place:
        compared = _Compared(node, Path(place), 1, 1, 1.0)
        assert not compared.plain.record(5).last
        await compared.stories("ann")
        (story,) = await find_stories(as_log(compared.indexed), ref=position(3, 0))
        assert [step.what for step in story.steps] == ["discarded"]


async def test_a_checkpoint_repeats_a_message_in_its_own_turn(tmp_path: Path) -> None:
    """The turn of a message is split; another part of it repeats the message, and is repeated."""

    def again(ref: Position) -> RetainedSnapshot:
        return RetainedSnapshot(["t"], [1], [ref], 1, 0, 1)

    log = LogBuilder("n")
    published = MessagePublished("p", 1, True, ["t"], [], [1], 1, 0, 1)
    log.record(published, payloads=[b"x"], last=False)
    log.record(again(position(1, 0)), payloads=[b"x"], part=1)
    log.record(again(position(2, 0)), payloads=[b"x"])
    log.record(again(position(3, 0)), payloads=[b"x"])
    compared = _Compared(node_of(log.records), tmp_path, 1, 1, 1.0)
    for source in (compared.plain, compared.indexed):
        (story,) = await find_stories(as_log(source), ref=position(1, 0))
        repeated = [step.at for step in story.steps if step.what == "repeated"]
        assert repeated == [position(record, 0) for record in (2, 3, 4)]


@pytest.mark.slow
@given(steps=MANY, step=st.integers(1, 4), data=st.data())
async def test_a_damaged_index_gives_no_wrong_answer(
    steps: Steps, step: int, data: st.DataObject
) -> None:
    """Any byte of any file may change, and any file may be missing or cut short."""
    node = played(steps, 600)
    with tempfile.TemporaryDirectory() as place:
        compared = _Compared(node, Path(place), 1, step, 1.0)
        paths = segments_in(place)
        if not paths:
            return
        path = data.draw(st.sampled_from(paths), label="file")
        stored = bytearray(path.read_bytes())
        at = data.draw(st.integers(0, len(stored) - 1), label="byte")
        harm = data.draw(st.sampled_from(["change", "cut", "remove"]), label="harm")
        if harm == "change":
            stored[at] ^= data.draw(st.integers(1, 255), label="bits")
            path.write_bytes(stored)
        elif harm == "cut":
            path.write_bytes(stored[:at])
        else:
            path.unlink()
        compared.indexed.index = LogIndex((), 1)
        files = IndexFiles(Path(place))
        try:
            files.open(STREAM)
        except BadIndex:
            return
        use(compared.indexed, files)
        await compared.states("ann")
        await compared.events()
        await compared.stories("ann")


def test_a_record_that_was_replaced_is_noticed() -> None:
    """The index may be of the log by its last record, and a record before be another one."""
    one = played([("publish", "ann", 1), ("end_turn", "ann", 1), ("publish", "bob", 2)], 1 << 20)
    two = played([("publish", "ann", 2), ("end_turn", "ann", 1), ("publish", "bob", 2)], 1 << 20)
    with tempfile.TemporaryDirectory() as place:
        source = IndexedSource(two)
        files = build(IndexedSource(one), Path(place), 2, 8)
        use(source, files)
        index = source.index
        index.check(IndexedSource(one).record(1))
        with pytest.raises(BadIndex, match="record 1 is not the one that was indexed"):
            index.check(source.record(1))
        wanted = EventFilter((), "ann", None)
        assert asyncio.run(listed(source, wanted, 1)) == asyncio.run(
            listed(IndexedSource(two), wanted, 1)
        )


async def test_another_log_with_the_name_is_not_taken_for_it() -> None:
    one = played([("publish", "ann", 1), ("end_turn", "ann", 1)], 1 << 20)
    two = played([("publish", "ann", 2), ("end_turn", "ann", 1)], 1 << 20)
    with tempfile.TemporaryDirectory() as place:
        build(IndexedSource(one), Path(place), 1, 1).close()
        for log, empty in ((one, False), (two, True)):
            source = await with_index(as_log(IndexedSource(log)), Path(place))
            assert source.index.empty == empty


@pytest.mark.slow
async def test_many_small_segments_become_few() -> None:
    node = Node(1 << 20)
    node.connect("ann", 1)
    for number in range(75):
        node.subscribe("ann", 1 + number % 3)
        node.publish("ann", 1 + number % 2)
        node.end_turn("ann", 1)
    node.finish()
    with tempfile.TemporaryDirectory() as place:
        compared = _Compared(node, Path(place), 1, 3, 1.0)
        assert len(segments_in(place)) < 20
        await compared.states("ann")
        await compared.stories("ann")


@given(steps=MANY, more=MANY)
def test_entries_are_counted_without_reading_events(steps: Steps, more: Steps) -> None:
    """What the index passes over has the positions that it has when it is read."""
    node = played([*steps, *CHECKPOINT, *more], 600)
    source = IndexedSource(node)
    for sequence in range(1, source.last + 1):
        record = source.record(sequence)
        for name in NAMES:
            own = [
                (position(sequence, index), event)
                for index, event in record.events()
                if getattr(event, "session", None) == name
            ]
            assert list(own_events(record, name)) == own


@pytest.mark.parametrize(
    "event",
    [InboundReplaced("ann", [[1, 2, 1]], [[5, 2, 1]]), ForwardRefused("erp", [[4, 2, 1]], "no")],
    ids=lambda event: event.e,
)
def test_entries_of_rare_events_are_counted(event: Event) -> None:
    opened = SessionOpened("bob", False, False, 4)
    log = LogBuilder("n")
    log.record(event, opened)
    record = IndexedSource(node_of(log.records)).record(1)
    assert list(own_events(record, "bob")) == [(position(1, 2), opened)]


def effects_in(index: LogIndex, *asked: Any) -> list[int] | None:
    steps = index.effects_in_steps(*asked)
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return cast("list[int] | None", end.value)


def effects(source: IndexedSource, topic_filter: str, first: int, last: int) -> set[int]:
    """The records in which messages on matching topics take effect."""
    topics: dict[int, str] = {}
    found: set[int] = set()
    for sequence in range(source.begin, last + 1):
        for index, event in source.record(sequence).events():
            if isinstance(event, MessagePublished):
                for number in range(event.count):
                    topic = event.topics[event.which[number] if event.which else 0]
                    topics[position(sequence, index) + number] = topic
                    if event.qos < 2 or event.will:
                        found |= {sequence} if matches(topic_filter, topic) else set()
            elif isinstance(event, Released):
                for ref in from_runs(event.refs):
                    if ref not in topics or matches(topic_filter, topics[ref]):
                        found.add(sequence)
    return {sequence for sequence in found if first <= sequence}


@examples(2)
@given(
    steps=MANY,
    max_record=st.sampled_from([600, 1 << 20]),
    step=st.integers(1, 9),
    topic_filter=st.sampled_from(TOPIC_FILTERS),
    part=st.floats(0, 1),
)
def test_the_index_shows_where_messages_take_effect(
    steps: Steps, max_record: int, step: int, topic_filter: str, part: float
) -> None:
    node = played(steps, max_record)
    source = IndexedSource(node)
    with tempfile.TemporaryDirectory() as path:
        files = build(source, Path(path), source.last, step, restart=step % 2 == 0)
        index = LogIndex(files.segments, source.begin)
        first, last = max(1, round(part * index.last)), index.last
        found = effects_in(index, "", lambda topic: matches(topic_filter, topic), first, last)
        assert found is not None
        assert found == sorted(found)
        assert effects(source, topic_filter, first, last) <= {*found}
        files.close()


def test_a_release_is_listed_for_its_topic(tmp_path: Path) -> None:
    """Of a message that another process indexed, the topic is not known."""
    log = LogBuilder("n")
    log.record(SessionOpened("p", False, False, 4))
    for pid, topic in enumerate(("a", "b"), 1):
        log.record(MessagePublished("p", 2, False, [topic], [], [pid], 1, 0, 1), payloads=[b"x"])
    log.record(Released("p", [1], [position(2, 0)]))
    log.record(Released("p", [2], [position(3, 0)]))
    source = IndexedSource(node_of(log.records))
    for step, found in ((9, [2, 4]), (4, [2, 4, 5])):
        files = build(source, tmp_path / str(step), source.last, step, restart=True)
        index = LogIndex(files.segments, source.begin)
        assert effects_in(index, "a", "a".__eq__, 1, 5) == found
        assert effects_in(index, "a", "a".__eq__, 3, 4) == [4]
        files.close()


def test_an_index_of_an_earlier_version_does_not_show_where_messages_take_effect(
    tmp_path: Path,
) -> None:
    node = played([("publish", "ann", 2), ("end_turn", "ann", 1)], 1 << 20)
    source = IndexedSource(node)
    files = build(source, tmp_path, source.last, 1)
    index = LogIndex(files.segments, source.begin)
    assert effects_in(index, "", lambda _topic: True, 1, index.last) is not None
    assert effects_in(index, "", lambda _topic: True, 1, index.last + 1) is None
    earlier = files.segments[0]
    earlier.head = replace(earlier.head, effects=False)
    assert effects_in(index, "", lambda _topic: True, 1, index.last) is None
    files.close()


@pytest.mark.parametrize("lost", [False, True])
async def test_without_an_index_the_log_is_read_once_for_a_message(
    tmp_path: Path, *, lost: bool
) -> None:
    """Also to know whether records of it were lost."""
    steps = [(step, "ann", at) for at in range(15) for step in ("publish", "end_turn")]
    source = IndexedSource(played(steps, 600))
    if lost:
        source = cast("IndexedSource", source.salvaged(tmp_path, 2))
    for wanted in (WantedMessages("#", None), WantedMessages(None, None, ref=position(4, 0))):
        source.seen, source.read = RecordsRead(), 0
        found = await find_messages({"": as_log(source)}, "", wanted, silent)
        assert found
        assert source.read == source.last
        doubts = await lost_records(as_log(source), source.last)
        assert [(doubt.after, doubt.until) for doubt in doubts] == ([(1, 2)] if lost else [])
        assert source.read == source.last


async def test_a_record_that_was_given_up_is_named(tmp_path: Path) -> None:
    """Both where its stand-in has no event, and where that has the event about the salvage."""
    steps = [(step, "ann", at) for at in range(15) for step in ("publish", "end_turn")]
    source: Any = IndexedSource(played(steps, 600)).salvaged(tmp_path, 3, 4)
    for lost in (3, 4):
        wanted = WantedMessages(None, None, ref=position(lost, 0))
        with pytest.raises(CutOff, match=f"nothing is known of record {lost}: foldmq salvage gave"):
            await find_messages({"": source}, "", wanted, silent)


async def test_what_was_lost_before_a_cut_is_said_of_the_subscriptions_of_a_client() -> None:
    steps = [(step, "ann", at) for at in range(15) for step in ("publish", "end_turn")]
    source: Any = IndexedSource(played(steps, 600))
    event = LogCut(1, GENESIS.hex(), 0, "keep", lost=[[3, 5, 3, 1000, 2000]])
    source.cut = RecordedCut(position(1, 0), 0, event)
    for client, said in ((None, []), ("bob", ["gave up records 3 to 5 (3 records)"])):
        (found,) = await find_messages({"": source}, "", WantedMessages("#", client), silent)
        assert len(found.story.not_proven) == len(said)
        assert all(part in note for part, note in zip(said, found.story.not_proven, strict=True))
