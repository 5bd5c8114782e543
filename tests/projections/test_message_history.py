"""The messages of the past, of whole, cut, indexed and several logs."""

import asyncio
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from handmadelogs import HandMade, publish
from hypothesis import example, given
from hypothesis import strategies as st
from indexedlogs import IndexedSource, as_log, build, use
from playedlogs import played
from playedpartitions import PARTITION_STEPS, PlayedPartitions
from randomnode import NAMES, STEPS
from recordednode import Effect, Recorded

from eventstore.errors import CutOff, UsageError
from eventstore.format.events import Released
from eventstore.format.node_events import LogCut, MessagesCarried
from eventstore.format.positions import index_of, parse_position, position, sequence_of
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.moments import parse_moment
from projections.past.message_history import (
    HistoryRange,
    MessageHistory,
    history_range,
    last_messages,
)
from projections.past.topic_lookup import topic_matcher
from projections.views.publication_view import (
    PublicationView,
    publication_line,
    publication_object,
)

NOW_MS = 1_800_000_000_000
MANY = st.lists(
    st.tuples(
        st.sampled_from([*STEPS, "publish", "publish", "release"]),
        st.sampled_from(NAMES),
        st.integers(0, 30),
    ),
    max_size=50,
)
LOG_FILTERS = st.sampled_from(["#", "a", "a/#", "+", "nothing"])


def seen(view: PublicationView) -> tuple[Any, ...]:
    return (
        view.position, view.publisher, view.topic, view.payload, view.qos, view.retain,
        view.block, view.will,
    )  # fmt: skip


def noted(effect: Effect) -> tuple[Any, ...]:
    return (
        effect.at, effect.session, effect.topic, effect.payload, effect.qos, effect.retain,
        effect.block, effect.will,
    )  # fmt: skip


async def all_of(
    logs: Mapping[str, LogSource], topic_filter: str, part: HistoryRange
) -> list[PublicationView]:
    return [one async for one in MessageHistory(logs, topic_filter).between(part)]


@example([("connect", "bob", 0), ("publish", "ann", 0)], 600, "#", None, 0.0, 1)  # within a turn
@given(
    MANY,
    st.sampled_from([600, 1 << 20]),
    LOG_FILTERS,
    st.sampled_from([None, 0.5, 1.0]),
    st.sampled_from([0.0, 0.3]),
    st.integers(1, 12),
)
async def test_the_messages_of_a_log(
    steps: list[tuple[str, str, int]],
    max_record: int,
    topic_filter: str,
    indexed: float | None,
    cut: float,
    count: int,
) -> None:
    """Oldest first, newest first, and in pages, with and without an index, whole and cut."""

    async def check(directory: str) -> None:
        node = played(steps, max_record, Recorded, 5)
        whole = IndexedSource(node)
        first = 1 + int(cut * whole.last)
        if first > 1 and whole.record(first).part:
            return  # a log is cut between turns
        source = IndexedSource(node, first)
        if indexed is not None:
            share = max(first, int(indexed * source.last))
            use(source, build(source, Path(directory), share, 3))
        matches = topic_matcher(topic_filter)
        begin = position(first, 0)
        expected = [
            noted(one)
            for one in node.effects
            if matches(one.topic) and one.at >= begin and one.ref >= begin
        ]
        logs = {"": as_log(source)}
        part = await history_range(logs)
        views = await all_of(logs, topic_filter, part)
        assert [seen(one) for one in views] == expected
        history = MessageHistory(logs, topic_filter)
        assert [seen(one) for one in await history.latest(count, part)] == expected[-count:]
        paged, left = list[PublicationView](), part
        while page := await history.latest(count, left):
            paged[:0] = page
            left = left.before({"": page[0].position})
        assert paged == views
        if views:
            middle = views[len(views) // 2].position
            after = part.after({"": middle})
            assert await all_of(logs, topic_filter, after) == [
                one for one in views if one.position > middle
            ]
        for view in views[:count]:
            place = {"": LogPoint(sequence_of(view.position), index_of(view.position))}
            assert await all_of(logs, topic_filter, HistoryRange(place, place)) == [view]
        latest = {one.topic: one for one in views}
        found = await last_messages(logs, topic_filter, part)
        assert found == [latest[topic] for topic in sorted(latest)]

    with tempfile.TemporaryDirectory() as directory:
        await check(directory)


@given(PARTITION_STEPS)
def test_each_message_of_several_logs_comes_once(steps: list[tuple[str, int, int]]) -> None:
    parts = PlayedPartitions(steps)
    logs = {name: as_log(IndexedSource(node)) for name, node in parts.logs.items()}

    async def check() -> None:
        part = await history_range(logs)
        views = await all_of(logs, "#", part)
        for name, source in logs.items():
            own = [one for one in views if one.log == name]
            alone = await history_range({"": source})
            expected = await all_of({"": source}, "#", alone)
            assert [seen(one) for one in own] == [seen(one) for one in expected]
        assert {one.publisher for one in views} <= {*parts.names}
        assert [one.time_ms for one in views] == sorted(one.time_ms for one in views)
        history, paged, left = MessageHistory(logs, "#"), list[PublicationView](), part
        while page := await history.latest(3, left):
            paged[:0] = page
            left = left.before({one.log: one.position for one in reversed(page)})
        assert paged == views

    asyncio.run(check())


CARRIED = [
    publish(b"two", qos=2),
    (MessagesCarried([position(1, 0)], ["a"], [], 3, 0, 1, publishers=["ann"]), (b"two",)),
    (LogCut(2, "", 1000, "keep"), ()),
    publish(b"one"),
    (Released("ann", [1], [position(1, 0)]), ()),
]


@pytest.mark.parametrize("first", [1, 2])
async def test_a_released_message_whose_record_was_cut_has_its_content(first: int) -> None:
    logs = {"": as_log(HandMade(CARRIED, first, cut_at=3))}
    views = await all_of(logs, "a", await history_range(logs))
    assert [(one.position, one.payload) for one in views] == [
        (position(4, 0), b"one"),
        (position(5, 0), b"two"),
    ]


def times_of(start: str | None, until: str | None, *, first: int = 1) -> HistoryRange:
    logs = {"": as_log(HandMade([publish(b"%d" % at) for at in range(9)], first))}
    moments = [parse_moment(one, NOW_MS) if one is not None else None for one in (start, until)]
    return asyncio.run(history_range(logs, *moments))


@pytest.mark.parametrize(
    ("start", "until", "expected"),
    [
        (None, None, range(1, 10)),
        ("all", "@3", range(1, 4)),
        ("new", None, ()),
        ("@2", "@4", range(2, 5)),
        ("@2.5", None, range(3, 10)),
        ("3", None, range(4, 10)),
        ("3.0", "4", range(4, 5)),
        ("9", None, ()),
    ],
)
def test_beginnings_and_ends(start: str | None, until: str | None, expected: Any) -> None:
    """A position as the beginning is the last one that was seen."""
    logs = {"": as_log(HandMade([publish(b"%d" % at) for at in range(9)]))}
    views = asyncio.run(all_of(logs, "a", times_of(start, until)))
    assert [sequence_of(one.position) for one in views] == [*expected]


def test_what_was_cut_is_reported() -> None:
    assert times_of("@1", None, first=4).cut == [""]
    assert times_of("2", None, first=4).cut == [""]
    assert times_of("3", None, first=4).cut == []
    assert times_of("all", None, first=4).cut == []
    with pytest.raises(CutOff, match="the log begins with record 4"):
        times_of(None, "@2", first=4)
    with pytest.raises(UsageError, match="beyond the end"):
        times_of("10", None)


def test_positions_of_several_logs_name_them() -> None:
    logs = {
        name: as_log(HandMade([publish(b"%d" % at) for at in range(9)]))
        for name in ("n-p0", "n-p1")
    }

    def starts(text: str) -> Mapping[str, LogPoint]:
        return asyncio.run(history_range(logs, parse_moment(text, NOW_MS))).starts

    assert starts("n-p0:3.1,n-p1:4") == {"n-p0": LogPoint(3, 2), "n-p1": LogPoint(5, 0)}
    for text, reason in (
        ("3", "is one of a log"),
        ("n-p0:3", "is one of a log"),
        ("x:3", "no log x"),
    ):
        with pytest.raises(UsageError, match=reason):
            starts(text)


def test_a_message_as_an_object_and_as_a_line() -> None:
    block = b"\2\0\0\0\5\x26\0\1k\0\1v"
    view = PublicationView(
        "", parse_position("8.1"), 1_700_000_000_123, "hall/\x1b[2Jdoor", 1, True, "sensor \n1",
        b"\xff\x00", block, 1_700_000_005, will=True,
    )  # fmt: skip
    assert publication_object(view) == {
        "position": "8.1",
        "at": "2023-11-14T22:13:20.123Z",
        "topic": "hall/\x1b[2Jdoor",
        "qos": 1,
        "retain": True,
        "publisher": "sensor \n1",
        "size": 2,
        "will": True,
        "expires_at": "2023-11-14T22:13:25.500Z",
        "properties": {"user_properties": [["k", "v"]]},
        "payload_base64": "/wA=",
    }
    assert "payload_base64" not in publication_object(view, payload=False)
    line = publication_line(view)
    assert line.isprintable()
    assert line.endswith('"\\xff\\u0000"')
    assert '"sensor \\n1"' in line
    assert publication_line(view, payload=False).endswith("k=v")
