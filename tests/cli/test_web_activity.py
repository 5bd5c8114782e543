"""The activity of a log's last day on the web page, and its time axis."""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import cast

import pytest

from cli.web.activity import MINUTE_MS, ActivityOfLogs
from cli.web.activity_reader import ActivityReader
from cli.web.svg_charts import WIDTH, day_charts
from cli.web.time_axis import TimeWindow, mark_row, ticks, window_within
from cli.web.timeline_marks import MARK_LABELS, Mark, Marks, mark_kind
from cli.web.topic_activity import MAX_TOPICS, TopicActivity, topic_branches
from cli.web.web_log_client import WebLogClient
from eventstore.errors import CorruptLog, NoLog, UsageError
from eventstore.format.event_parsing import Event
from eventstore.format.events import MessageDropped, MessagePublished, SessionClosed, SessionOpened
from eventstore.format.node_events import BrokerStarted
from eventstore.format.records import encode_record

NOW_MS = 1_800_000_000_000
HOUR = 60 * MINUTE_MS


class FakeLog:
    """A log in memory, of which is counted what is read."""

    stream = "FOLDMQ_LOG_n"

    def __init__(self) -> None:
        self.data: dict[int, bytes] = {}
        self.read: list[int] = []
        self.first = 1
        self.lost_at: int | None = None
        self.lost = False

    def add(self, time_ms: int, *events: Event) -> None:
        self.data[self.last + 1] = encode_record(
            previous=b"\0" * 32, node="n", time_ms=time_ms, events=events, payloads=[b"12345"]
        )

    @property
    def begin(self) -> int:
        return self.first

    @property
    def last(self) -> int:
        return max(self.data, default=0)

    async def stored(self, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        for sequence in range(first, last + 1):
            if sequence == self.lost_at:
                raise NoLog("gone")
            self.read.append(sequence)
            yield sequence, self.data[sequence]

    @contextlib.asynccontextmanager
    async def log(self, log: str = "") -> AsyncIterator[FakeLog]:
        assert not log
        if self.lost:
            raise NoLog("gone")
        yield self


def connect(session: str = "ann") -> SessionOpened:
    return SessionOpened(session, resumed=False, clean=True, level=4)


def published(*topics: str) -> MessagePublished:
    pids = list(range(1, len(topics) + 1))
    names = list(dict.fromkeys(topics))
    which = [names.index(one) for one in topics] if len(names) > 1 else []
    return MessagePublished("ann", 1, False, names, which, pids, 2, 0, len(topics))


def reader_of(log: FakeLog) -> ActivityReader:
    return ActivityReader(cast("WebLogClient", log), now=lambda: NOW_MS / 1000)


async def read_all(reader: ActivityReader) -> None:
    """Read until a day is covered."""
    while not reader.complete:
        await reader.wait(5)
        await asyncio.sleep(0)


def seen(reader: ActivityReader) -> ActivityOfLogs:
    return ActivityOfLogs([reader.activity])


def run(log: FakeLog) -> ActivityReader:
    reader = reader_of(log)

    async def reading() -> None:
        await read_all(reader)
        await reader.close()

    asyncio.run(reading())
    return reader


WHOLE = TimeWindow(NOW_MS - 24 * HOUR, NOW_MS)


def test_each_minute_has_its_figures_and_marks() -> None:
    log = FakeLog()
    log.add(NOW_MS - 2 * HOUR, BrokerStarted("0"), connect(), published("a", "b", "a"))
    log.add(NOW_MS - HOUR, MessageDropped("bob", "queue_messages", 7))
    log.add(NOW_MS - HOUR, SessionClosed("ann", "keep_alive"), SessionClosed("bob", "disconnect"))
    reader = run(log)
    totals = seen(reader).totals(WHOLE)
    assert (totals["published"], totals["published_bytes"], totals["dropped"]) == (3, 6, 7)
    assert (totals["connect"], totals["lost"], totals["restart"]) == (1, 1, 1)
    assert totals["log_bytes"] == sum(map(len, log.data.values()))
    assert seen(reader).figure("dropped", (NOW_MS - HOUR) // MINUTE_MS) == 7
    assert seen(reader).marks(WHOLE)["drop"] == [Mark(NOW_MS - HOUR, 2, 7)]
    assert seen(reader).marks(TimeWindow(NOW_MS - MINUTE_MS, NOW_MS)) == {}


def test_a_day_is_read_once_and_no_more() -> None:
    """Newest first; what is older than a day is left alone; then only what is new."""
    log = FakeLog()
    for number in range(2880):
        log.add(NOW_MS - 48 * HOUR + number * MINUTE_MS, connect())

    async def reading() -> ActivityReader:
        reader = reader_of(log)
        await read_all(reader)
        before = len(log.read)
        assert before == len(set(log.read)) < 2500
        assert min(log.read) > 500
        log.add(NOW_MS, connect())
        while log.read[-1] != 2881:
            await reader.wait(5)
        assert len(log.read) == before + 1
        await reader.close()
        return reader

    reader = asyncio.run(reading())
    assert seen(reader).totals(WHOLE)["connect"] == 1441
    assert reader.reaches(NOW_MS - 24 * HOUR)


def test_a_damaged_record_ends_the_reading_backwards() -> None:
    log = FakeLog()
    for number in range(1000):
        log.add(NOW_MS - 1000 + number, connect())
    log.data[10] = log.data[10][:-1] + b"!"
    reader = run(log)
    assert "record 10" in (reader.problem or "")
    assert reader.since_ms is not None
    assert seen(reader).totals(WHOLE)["connect"] >= 800


def test_a_damaged_new_record_is_reported_each_time() -> None:
    log = FakeLog()
    log.add(NOW_MS, connect())
    log.data[1] = log.data[1][:-1] + b"!"

    async def reading() -> None:
        reader = reader_of(log)
        for _ in range(2):
            with pytest.raises(CorruptLog):
                await reader.wait(5)

    asyncio.run(reading())


def test_records_that_were_read_in_part_are_not_counted_twice() -> None:
    log = FakeLog()
    for _ in range(10):
        log.add(NOW_MS, connect())

    async def reading() -> None:
        reader = reader_of(log)
        log.lost_at = 5
        with pytest.raises(NoLog):
            await reader.wait(5)
        log.lost_at = None
        await read_all(reader)
        assert seen(reader).totals(WHOLE)["connect"] == 10
        # While nothing is read, an error costs nothing.
        log.lost = True
        with contextlib.suppress(NoLog):
            while True:
                await reader.wait(5)
        log.lost = False
        before = len(log.read)
        await reader.wait(5)
        assert len(log.read) == before
        await reader.close()

    asyncio.run(reading())


def test_another_log_is_read_from_its_start() -> None:
    log = FakeLog()
    log.add(NOW_MS, connect(), connect("bob"))

    async def reading() -> None:
        reader = reader_of(log)
        await read_all(reader)
        log.stream = "FOLDMQ_LOG_m"
        log.data.clear()
        log.add(NOW_MS, connect())
        while seen(reader).totals(WHOLE)["connect"] != 1:
            await reader.wait(5)
        await reader.close()

    asyncio.run(reading())


def test_charts_of_the_day_have_values_where_the_log_was_read() -> None:
    log = FakeLog()
    for number in range(120):
        log.add(NOW_MS - 2 * HOUR + number * MINUTE_MS, connect(), published(*"abcdef"))
    reader = run(log)
    assert reader.since_ms == NOW_MS - 2 * HOUR
    assert reader.reading() is None
    nothing = day_charts(seen(reader), NOW_MS, NOW_MS)
    assert all(not curve.line for one, _ in nothing for curve in one.curves)
    made = day_charts(seen(reader), reader.since_ms, NOW_MS)
    tops = {one.title: one.top for one, _ in made}
    assert tops["Messages per second"] == pytest.approx(0.1)
    assert tops["Connections per minute"] == pytest.approx(1.0)
    assert tops["Not delivered per minute"] == 0
    assert made[0][0].seconds == 2 * 3600
    minute = (NOW_MS - MINUTE_MS, 2)  # a level
    for since_ms, points in (minute, (NOW_MS - 2 * HOUR, 120), (NOW_MS - 30 * HOUR, 144)):
        ((one, _), *_) = day_charts(seen(reader), since_ms, NOW_MS)
        drawn = [float(x) for x in re.findall(r"[ML]([\d.]+) ", one.curves[0].line)]
        assert (len(drawn), drawn[0], drawn[-1]) == (points, 0, WIDTH)


# --------------------------------------------------------------------------------- topics


def test_topics_have_messages_bytes_rates_and_publishers() -> None:
    log = FakeLog()
    log.add(NOW_MS - 2 * HOUR, published("a/b", "a/b", "a/c", "d"))
    log.add(NOW_MS - 2 * MINUTE_MS, replace(published("a/b", "a/b"), session="bob"), connect())
    topics = run(log).activity.topics
    found = topic_branches([topics], None, NOW_MS, [])
    assert list(found) == ["a", "d"]
    a, d = found["a"], found["d"]
    assert (a.topics, a.messages, a.is_topic, a.publisher) == (2, 5, False, "bob")
    assert (d.path, d.messages, d.is_topic, d.publisher) == ("d", 1, True, "ann")
    assert a.rate == pytest.approx(2 / 300)
    # The bytes of the records, besides payloads of which no event knows, are shared out.
    sizes = [2 * 4 + len(log.data[1]) - 5, 2 * 2 + len(log.data[2]) - 5]
    assert a.size + d.size == pytest.approx(sum(sizes))
    below = topic_branches([topics], "a", NOW_MS, [])
    assert {one.path: one.messages for one in below.values()} == {"a/b": 4, "a/c": 1}
    assert topic_branches([topics], "a/b", NOW_MS, []) == {}


def test_retained_messages_have_a_place_in_the_tree() -> None:
    topics = TopicActivity()
    rows = [
        {"topic": "a", "set_by": "ann", "set_ms": 5},
        {"topic": "a/b", "set_by": "bob", "set_ms": 6},
        {"topic": "/x", "set_by": None, "set_ms": None},
    ]
    found = topic_branches([topics], None, NOW_MS, rows)
    assert {level: (one.path, one.retained) for level, one in found.items()} == {
        "a": ("a", 2),
        "": ("", 1),
    }
    assert (found["a"].set_by, found["a"].topics) == ("ann", 2)
    assert list(topic_branches([topics], "", NOW_MS, rows)) == ["x"]


def test_topics_are_limited_and_removed_after_a_day() -> None:
    topics = TopicActivity()
    many = [(f"t/{number}", 1, 1, "ann") for number in range(MAX_TOPICS + 10)]
    topics.take(many, 0, NOW_MS - 30 * HOUR)
    assert (len(topics), topics.left_out) == (MAX_TOPICS, 10)
    topics.take([("t/1", 1, 1, "ann")], 0, NOW_MS)
    topics.forget_before(NOW_MS)
    assert len(topics) == 1
    assert topic_branches([topics], "t", NOW_MS, [])["1"].messages == 1


# ---------------------------------------------------------------------------------- marks


@pytest.mark.parametrize(
    ("event", "reason", "kind"),
    [
        ("SessionOpened", "", "connect"),
        ("SessionTakenOver", "", "takeover"),
        ("SessionClosed", "disconnect", None),
        ("SessionClosed", "taken_over", None),
        ("SessionClosed", "keep_alive", "lost"),
        ("SessionClosed", "broker_restarted", "restart"),
        ("MessageDropped", "queue_bytes", "drop"),
        ("WillFired", "", "will"),
        ("BrokerStarted", "", "restart"),
        ("Acked", "", None),
    ],
)
def test_events_have_marks(event: str, reason: str, kind: str | None) -> None:
    assert mark_kind(event, reason) == kind
    assert kind is None or kind in MARK_LABELS


def test_too_many_marks_are_joined_and_none_is_lost() -> None:
    marks = Marks(10)
    for number in range(1000):
        marks.add("connect", Mark(number, number, 1))
    kept = marks.of("connect")
    assert len(kept) <= 10
    assert sum(one.number for one in kept) == 1000
    assert kept[0].time_ms == 0
    assert max(one.number for one in kept) <= 200, "none stands for more of the time than others"
    assert [one.time_ms for one in kept] == sorted(one.time_ms for one in kept)
    assert marks.of("will") == []


# ----------------------------------------------------------------------------------- axis


def test_close_marks_are_drawn_as_one() -> None:
    window = TimeWindow(0, 1_000_000)
    marks = [Mark(10, 1, 1), Mark(20, 2, 5), Mark(500_000, 3, 1), Mark(2_000_000, 4, 1)]
    assert mark_row(window, marks) == [[0.0, 6, 1, 10], [500.0, 1, 3, 500_000]]


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
@pytest.mark.parametrize("span", [1_000, 60_000, HOUR, 24 * HOUR, 90 * 24 * HOUR])
def test_ticks_are_round_clock_times(zone: str, span: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", zone)
    time.tzset()
    try:
        window = TimeWindow(NOW_MS, NOW_MS + span)
        found = ticks(window)
        assert 1 <= len(found) <= 8
        assert all(0 <= place <= 1000 for place, _ in found)
        for place, label in found:
            shown = datetime.fromtimestamp((NOW_MS + span * place / 1000) / 1000, UTC).astimezone()
            near = [shown + timedelta(milliseconds=shift * span / 2000) for shift in (-1, 0, 1)]
            form = "%m-%d" if "-" in label else ("%H:%M:%S" if label.count(":") > 1 else "%H:%M")
            assert label in [one.strftime(form) for one in near]
    finally:
        monkeypatch.undo()
        time.tzset()


@pytest.mark.parametrize(
    ("begin", "end", "expected"),
    [
        (None, None, (0, 100_000)),
        (5_000, None, (5_000, 100_000)),
        (0, 999_999, (0, 100_000)),
        (200_000, 300_000, (99_000, 100_000)),
        (50_000, 50_001, (50_000, 51_000)),
    ],
)
def test_a_part_of_time_is_within_the_whole(
    begin: int | None, end: int | None, expected: tuple[int, int]
) -> None:
    found = window_within(TimeWindow(0, 100_000), begin, end)
    assert (found.begin_ms, found.end_ms) == expected


def test_a_part_of_time_has_a_length() -> None:
    with pytest.raises(UsageError, match="before"):
        window_within(TimeWindow(0, 100_000), 5, 5)


def test_an_error_that_is_not_expected_is_raised_once_and_not_tried_again_at_once() -> None:
    log, tries = FakeLog(), [0]
    log.add(NOW_MS, connect())

    async def fails(_first: int, _last: int) -> AsyncIterator[tuple[int, bytes]]:
        tries[0] += 1
        raise RuntimeError("a defect")
        yield 0, b""

    async def scenario() -> None:
        log.stored = fails  # type: ignore[method-assign]
        reader = reader_of(log)
        for number in (1, 2):
            with pytest.raises(RuntimeError, match="a defect"):
                await reader.reach(NOW_MS - HOUR, 60)
            assert tries[0] == number
        await reader.close()

    asyncio.run(scenario())
