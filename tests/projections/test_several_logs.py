"""Answers about several logs are those about each of them, joined."""

import asyncio
from collections import defaultdict
from collections.abc import AsyncIterator, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from indexedlogs import IndexedSource, as_log
from playedlogs import MANY, FakeSource, as_source, played
from playedpartitions import PARTITION_STEPS, PlayedPartitions
from randomnode import NAMES
from specification import snapshot

from eventstore.errors import CorruptLog, CutMeanwhile
from eventstore.format.events import LOG_SESSION, Queued, Subscribed
from eventstore.format.positions import Position
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.partitions import short_name
from eventstore.reading.log_points import LogPoint, last_until
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import silent
from projections.past.event_reader import EventEntry, EventFilter, EventReader
from projections.past.joined_state import (
    JoinedState,
    LogState,
    StatesBetween,
    changes_in_logs,
    fold_logs,
    joined_retained_changes,
    joined_sessions_changed,
    states_between,
)
from projections.past.merged_events import LogEntry, MergedReader
from projections.past.replay import AsOf, Replay
from projections.state.node_state import NodeState
from projections.state.retained import RetainedMessage
from projections.views.differences import StateFacts, retained_changes, sessions_changed


class GrowingSource(FakeSource):
    """A log in memory of which first only some records are there."""

    def __init__(self, node: Any, there: int) -> None:
        super().__init__(node)
        self.end = self.last
        self.last = min(there, self.end)
        self.cut_when_read = False

    async def bounds(self) -> tuple[int, int]:
        return self.first, self.last

    async def records(self, first: int, last: int) -> AsyncIterator[Record]:
        for sequence in range(first, last + 1):
            if self.cut_when_read and sequence > first:
                self.cut_when_read = False
                self.first = sequence + 1
                raise CutMeanwhile(self.first)
            yield self.record(sequence)

    def grow(self, count: int) -> None:
        self.last = min(self.end, self.last + count)


async def points_in_logs(logs: Mapping[str, LogSource], time_ms: int | None) -> dict[str, LogPoint]:
    """Return the last record of each log up to a time; None: its last one."""
    return {
        log: LogPoint(source.last if time_ms is None else await last_until(source, time_ms))
        for log, source in logs.items()
    }


# --------------------------------------------------------------------------------- events


async def read_alone(
    source: LogSource, selected: EventFilter, start: LogPoint, end: LogPoint
) -> list[EventEntry]:
    reader = EventReader(source, selected)
    turns = TurnAssembler(anywhere=True)
    return [entry async for entry in reader.entries(start, end, turns, ended=True)]


def places(entries: list[LogEntry], log: str) -> list[Position]:
    return [one.entry.at for one in entries if one.log == log]


@given(
    logs=st.lists(MANY, min_size=2, max_size=3),
    session=st.sampled_from([None, NAMES[0]]),
    kinds=st.sampled_from([(), (Queued, Subscribed)]),
    topic=st.sampled_from([None, "a/#"]),
    count=st.sampled_from([1, 5, 1000]),
    share=st.sampled_from([0.0, 0.4, 1.0]),
)
async def test_merged_events_are_those_of_each_log_by_time(
    logs: list[list[tuple[str, str, int]]],
    session: str | None,
    kinds: tuple[type, ...],
    topic: str | None,
    count: int,
    share: float,
) -> None:
    fakes = {f"n-p{at}": FakeSource(played(steps, 600)) for at, steps in enumerate(logs)}
    sources = {log: as_source(fake) for log, fake in fakes.items()}
    until = min(fake.record(max(1, int(share * fake.last))).time_ms for fake in fakes.values())

    def selected() -> EventFilter:
        return EventFilter(kinds, session, topic)

    ends = await points_in_logs(sources, until)
    starts = {log: LogPoint(1 + 3 * at, 0) for at, log in enumerate(reversed(sources))}
    merged = MergedReader(sources, selected).entries(starts, ends, ended=True)
    found = [entry async for entry in merged]
    for log, source in sources.items():
        alone = await read_alone(source, selected(), starts[log], ends[log])
        assert places(found, log) == [one.at for one in alone]
    order = [(one.entry.time_ms, one.log) for one in found]
    assert order == sorted(order)
    merged = MergedReader(sources, selected).entries(
        dict.fromkeys(sources, LogPoint(1, 0)), ends, ended=True
    )
    found = [entry async for entry in merged]
    latest = await MergedReader(sources, selected).latest(count, ends, ended=True)
    assert [(one.log, one.entry.at) for one in latest] == [
        (one.log, one.entry.at) for one in found[-count:]
    ]


async def test_only_the_next_event_of_each_log_is_read() -> None:
    steps = [("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 20
    fakes = {f"n-p{at}": IndexedSource(played(steps, 1 << 20)) for at in range(3)}
    sources = {log: as_log(fake) for log, fake in fakes.items()}

    starts = dict.fromkeys(sources, LogPoint(1, 0))
    ends = await points_in_logs(sources, None)
    merged = MergedReader(sources, EventFilter).entries(starts, ends, ended=True)
    for count in range(10):
        await anext(merged)
        assert sum(fake.read for fake in fakes.values()) <= count + 2 * len(fakes)
    await merged.aclose()
    assert sum(fake.last for fake in fakes.values()) > 30


async def test_a_clock_that_was_set_back_does_not_change_the_order_of_a_log() -> None:
    steps = [("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 10
    fakes = {f"n-p{at}": FakeSource(played(steps, 600)) for at in range(2)}
    sources = {log: as_source(fake) for log, fake in fakes.items()}
    right = fakes["n-p0"].record

    def set_back(sequence: int) -> Record:
        record = right(sequence)
        return replace(record, time_ms=record.time_ms - 1000 * (sequence > 5))

    fakes["n-p0"].record = set_back  # type: ignore[method-assign]

    starts = dict.fromkeys(sources, LogPoint(1, 0))
    ends = {log: LogPoint(source.last) for log, source in sources.items()}
    merged = MergedReader(sources, EventFilter).entries(starts, ends, ended=True)
    found = [entry async for entry in merged]
    times = [one.entry.time_ms for one in found if one.log == "n-p0"]
    assert times != sorted(times)
    for log in fakes:
        assert places(found, log) == sorted(places(found, log))
    # What follows the change of the clock is not held back by the other log.
    assert [one.log for one in found[-3:]] == ["n-p1"] * 3


@given(
    logs=st.lists(MANY, min_size=1, max_size=3),
    there=st.lists(st.integers(1, 20), min_size=3, max_size=3),
    growth=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 10)), max_size=12),
)
async def test_new_events_of_logs_that_grow_are_yielded_once(
    logs: list[list[tuple[str, str, int]]], there: list[int], growth: list[tuple[int, int]]
) -> None:
    fakes = {
        f"n-p{at}": GrowingSource(played(steps, 600), there[at]) for at, steps in enumerate(logs)
    }
    begun = {log: fake.last for log, fake in fakes.items()}
    sources = {log: as_source(fake) for log, fake in fakes.items()}

    def missed(log: str, first: int) -> None:
        raise AssertionError((log, first))

    reader = MergedReader(sources, EventFilter)
    found: list[LogEntry] = []
    names = list(fakes)
    for number, count in growth:
        fakes[names[number % len(names)]].grow(count)
        found += [entry async for entry in reader.new_entries(missed)]
    for fake in fakes.values():
        fake.grow(1 << 20)
    for _ in range(2):  # the first call sees them, the second one yields the last of them
        found += [entry async for entry in reader.new_entries(missed)]
    for log, source in sources.items():
        end = LogPoint(fakes[log].end)
        alone = await read_alone(source, EventFilter(), LogPoint(begun[log] + 1, 0), end)
        # The parts of a turn that began before belong to it, or are void.
        assert [at for at in places(found, log) if at >> 20 > begun[log]] == [
            one.at for one in alone
        ]


async def test_an_event_waits_for_earlier_ones_of_other_logs_that_arrive_late() -> None:
    steps = [("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 10
    early, late = (GrowingSource(played(steps, 600), there) for there in (4, 3))
    sources = {"n-p0": as_source(early), "n-p1": as_source(late)}

    reader = MergedReader(sources, EventFilter)
    found: list[LogEntry] = []
    for one in (early, late) * 6:  # one log is always ahead of the other
        one.grow(1)
        found += [entry async for entry in reader.new_entries(lambda *_: None)]
    times = [one.entry.time_ms for one in found]
    assert len(times) > 10
    assert times == sorted(times)


async def test_records_that_are_cut_before_they_are_shown_are_reported() -> None:
    steps = [("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 10
    cut, other = (GrowingSource(played(steps, 600), 3) for _ in range(2))
    sources = {"n-p0": as_source(cut), "n-p1": as_source(other)}
    said: list[tuple[str, int]] = []

    reader = MergedReader(sources, EventFilter)
    found: list[LogEntry] = []
    cut.grow(5)
    other.grow(5)
    cut.cut_when_read = True
    for _ in range(4):
        found += [entry async for entry in reader.new_entries(lambda *one: said.append(one))]
    found = found
    assert said == [("n-p0", 6)]
    shown = {log: [at >> 20 for at in places(found, log)] for log in sources}
    assert sorted(set(shown["n-p1"])) == [4, 5, 6, 7, 8]
    assert sorted(set(shown["n-p0"])) == [4, 6, 7, 8]
    assert all(len(set(places(found, log))) == len(places(found, log)) for log in sources)


async def test_an_error_names_its_log() -> None:
    steps = [("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 4
    intact, damaged = (FakeSource(played(steps, 600)) for _ in range(2))
    sources = {"n-p0": as_source(intact), "n-p1": as_source(damaged)}
    sound = damaged.record

    def record(sequence: int) -> Record:
        if sequence == 4:
            raise CorruptLog(4, "has a wrong checksum")
        return sound(sequence)

    damaged.record = record  # type: ignore[method-assign]

    starts = dict.fromkeys(sources, LogPoint(1, 0))
    ends = {log: LogPoint(source.last) for log, source in sources.items()}
    merged = MergedReader(sources, EventFilter).entries(starts, ends, ended=True)
    with pytest.raises(CorruptLog, match=r"^log n-p1: the log is damaged: record 4"):
        [entry async for entry in merged]


# --------------------------------------------------------------------------------- states


async def fold_alone(source: LogSource, time_ms: int) -> NodeState:
    point = LogPoint(await last_until(source, time_ms))
    replay = Replay(source, point.sequence)
    await replay.to(point)
    return replay.state


def versions(messages: dict[str, RetainedMessage | None]) -> set[object]:
    return {None if one is None else (one.payload, one.qos) for one in messages.values()}


def check_state(joined: JoinedState, alone: dict[str, NodeState]) -> None:
    expected = {
        (log, name): snapshot(one)
        for log, state in alone.items()
        for name, one in state.sessions.items()
        if not name.startswith(LOG_SESSION)
    }
    assert {(log, one.session): snapshot(one) for log, one in joined.sessions()} == expected
    assert joined.entries == sum(state.entries for state in alone.values())
    seen: defaultdict[str, list[str]] = defaultdict(list)
    for found in joined.retained():
        message = found.message
        assert found.log == found.logs[0]
        for log in found.logs:
            own = alone[log].retained.get(message.topic)
            assert own is not None
            assert (own.payload, own.qos) == (message.payload, message.qos)
        seen[message.topic] += found.logs
        all_have = {log: state.retained.get(message.topic) for log, state in alone.items()}
        assert found.everywhere == (len(versions(all_have)) == 1)
    for log, state in alone.items():
        assert {topic for topic, logs in seen.items() if log in logs} == {*state.retained.topics()}
    assert all(len(set(logs)) == len(logs) for logs in seen.values())
    matching = [(one.log, one.message) for one in joined.retained("a/#")]
    assert matching == [(one.log, one.message) for one in joined.retained()]


@pytest.mark.slow
@settings(max_examples=settings().max_examples // 3)
@given(steps=PARTITION_STEPS, shares=st.tuples(*[st.sampled_from([0.1, 0.5, 0.9])] * 2))
def test_states_and_changes_are_those_of_each_log(
    steps: list[tuple[str, int, int]], shares: tuple[float, float]
) -> None:
    node = PlayedPartitions(steps)
    fakes = {log: IndexedSource(one) for log, one in node.logs.items()}
    sources = {log: as_log(fake) for log, fake in fakes.items()}
    times = sorted(
        fake.record(sequence).time_ms
        for fake in fakes.values()
        for sequence in range(1, fake.last + 1)
    )
    moments = [times[0] - 1, *sorted(times[int(share * len(times))] for share in shares), times[-1]]

    async def check() -> None:
        for time_ms in moments:
            joined = await fold_logs(sources, await points_in_logs(sources, time_ms), silent)
            alone = {log: await fold_alone(one, time_ms) for log, one in sources.items()}
            check_state(joined, alone)
        latest = await fold_logs(sources, await points_in_logs(sources, None), silent)
        check_state(latest, alone)
        assert latest.last_ms == times[-1]
        assert all(one.everywhere for one in latest.retained())  # nothing happened for seconds
        for before, after in pairwise(moments):
            await check_changes(before, after)

    async def check_changes(before: int, after: int) -> None:
        starts, ends = await points_in_logs(sources, before), await points_in_logs(sources, after)
        changes = [each async for each in changes_in_logs(sources, starts, ends, None, silent)]
        sessions = []
        retained: dict[str, set[tuple[str, str, int]]] = {}
        for log, source in sources.items():
            first, second = [LogPoint(await last_until(source, one)) for one in (before, after)]
            alone = await states_between(source, first, second, None, silent)
            sessions += [
                (log, one)
                for one in sessions_changed(alone.old, alone.new)
                if not one.name.startswith(LOG_SESSION)
            ]
            retained[log] = set(retained_changes(alone.old.retained, alone.new.retained))
        sessions.sort(key=lambda one: one[1].name)
        assert joined_sessions_changed(changes) == sessions
        joined = joined_retained_changes(changes)
        for log, own in retained.items():
            assert {each.change for each in joined if log in each.logs} == own
        assert all(one.everywhere == (len(one.logs) == len(sources)) for one in joined)

    asyncio.run(check())


def retaining(**topics: tuple[bytes, bytes]) -> NodeState:
    state = NodeState()
    for at, (topic, (payload, block)) in enumerate(topics.items(), 1):
        state.retained.load(RetainedMessage(topic, payload, 1, at << 20, block))
    return state


def test_a_retained_message_is_the_same_whatever_is_left_of_its_expiry() -> None:
    def expiry(seconds: int) -> bytes:
        return b"\x02" + seconds.to_bytes(4, "big") + b"\x01\x01"

    here = retaining(same=(b"1", expiry(600)), other=(b"1", b""), mine=(b"1", b""))
    there = retaining(same=(b"1", expiry(590)), other=(b"2", b""), theirs=(b"1", b""))
    as_of = AsOf(LogPoint(5), 1)
    joined = JoinedState([LogState("n-p0", as_of, here), LogState("n-p1", as_of, there)])
    found = [(one.message.topic, one.logs, one.everywhere) for one in joined.retained()]
    assert found == [
        ("same", ("n-p0", "n-p1"), True),
        ("other", ("n-p0",), False),
        ("other", ("n-p1",), False),
        ("mine", ("n-p0",), False),
        ("theirs", ("n-p1",), False),
    ]


def facts(**retained: tuple[int, int]) -> StateFacts:
    return StateFacts({}, retained, 0)


def test_a_retained_message_that_some_logs_have_not_taken_is_a_change_of_the_others() -> None:
    as_of = AsOf(LogPoint(5), 1)
    old = facts(all=(1, 1), some=(2, 1))
    here = StatesBetween(as_of, as_of, old, facts(all=(3, 2), some=(2, 1), new=(4, 3)))
    there = StatesBetween(as_of, as_of, old, facts(all=(9, 2)))
    found = joined_retained_changes([("n-p0", here), ("n-p1", there)])
    assert found == [
        (("~", "all", 2), ("n-p0", "n-p1"), True),
        (("+", "new", 3), ("n-p0",), False),
        (("-", "some", 1), ("n-p1",), False),
    ]


async def test_a_log_that_cannot_be_folded_is_named() -> None:
    steps = [("subscribe", "bob", 1), ("end_turn", "bob", 1)] * 4
    logs = {f"n-p{at}": IndexedSource(played(steps, 600)) for at in range(2)}

    def short() -> None:
        raise CorruptLog(9, "is missing")

    logs["n-p1"].require_whole = short  # type: ignore[method-assign]
    with pytest.raises(CorruptLog, match=r"^log n-p1: the log is damaged: record 9 is missing"):
        await fold_logs(
            {log: as_log(one) for log, one in logs.items()},
            dict.fromkeys(logs, LogPoint(1)),
            silent,
        )


def test_short_names() -> None:
    assert [short_name(log) for log in ("plant-p0", "a-b-p11", "plant", "")] == [
        "p0",
        "p11",
        "plant",
        "",
    ]
