"""Drops of messages that never had a position: found by the topics that their events name."""

from pathlib import Path

import pytest
from indexedlogs import IndexedSource, as_log, turns_written

from actors.session.decisions import queueing
from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    MAX_DROPPED_TOPICS,
    MessageDropped,
    MessagePublished,
    SessionOpened,
    Subscribed,
)
from eventstore.format.positions import format_position, position
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.log_points import LogPoint
from projections.past.event_reader import EventFilter, EventReader
from projections.past.event_text import words
from projections.past.message_search import find_stories
from projections.past.story_text import story_lines

DENIED = MessageDropped("pump", "not_permitted", 1, topics=["hall/door"])
UNREAD = MessageDropped("c", "slow_reader", 2, topics=["hall/door", "hall/lamp"])
UNNAMED = MessageDropped("c", "slow_reader", 9)
SHARES = pytest.mark.parametrize("indexed", [0, 0.5, 1])


def published(*topics: str) -> MessagePublished:
    which = list(range(len(topics))) if len(topics) > 1 else []
    return MessagePublished("p", 1, False, [*topics], which, [1], 2, 0, len(topics))


async def listed(source: IndexedSource, topic: str) -> list[str]:
    """The positions of the events about a topic."""
    reader = EventReader(as_log(source), EventFilter(topic=topic))
    turns = TurnAssembler(anywhere=True)
    return [
        format_position(one.at)
        async for one in reader.entries(
            LogPoint(1, 0), LogPoint(source.last), turns, ended=True
        )
    ]  # fmt: skip


@SHARES
@pytest.mark.parametrize(
    ("topic", "expected"),
    [
        ("hall/door", ["2.0", "3.0", "4.0"]),
        ("hall/+", ["2.0", "3.0", "4.0"]),
        ("hall/lamp", ["4.0"]),
        ("#", ["2.0", "3.0", "4.0"]),
        ("cellar", []),
    ],
)
async def test_a_topic_lists_the_drops_that_name_it(
    tmp_path: Path, indexed: float, topic: str, expected: list[str]
) -> None:
    source = turns_written(
        tmp_path, indexed,
        [SessionOpened("p", False, False, 4)], [published("hall/door")], [DENIED], [UNREAD],
        [UNNAMED],
    )  # fmt: skip
    assert await listed(source, topic) == expected


@SHARES
async def test_a_drop_is_no_message_on_its_topic(tmp_path: Path, indexed: float) -> None:
    source = turns_written(tmp_path, indexed, [published("hall/door")], [DENIED], [UNREAD])
    found = await find_stories(as_log(source), topic_filter="hall/door")
    assert [one.ref for one in found] == [position(1, 0)]


def test_an_event_names_some_distinct_topics() -> None:
    topics = [b"a", b"b", b"a", *(b"%d" % number for number in range(20)), b"x" * 2000]
    event = queueing.dropped_unrecorded("c", "slow_reader", topics)
    assert event.count == len(topics)
    assert event.topics == ["a", "b", *map(str, range(MAX_DROPPED_TOPICS - 2))]
    (cut,) = queueing.dropped_unrecorded("c", "slow_reader", [b"x" * 2000]).topics
    assert cut == "x" * 1024


@pytest.mark.parametrize(
    ("drop", "topics", "said"),
    [
        (MessageDropped("c", "slow_reader", 1, topics=["hall/lamp"]), ["hall/door"], ""),
        (MessageDropped("c", "slow_reader", 1, topics=["hall/door"]), ["hall/door"], "most likely"),
        (
            MessageDropped("c", "slow_reader", 1, topics=["hall/door"]),
            ["hall/door", "hall/lamp"],
            "most likely",
        ),
        (UNREAD, ["hall/door", "hall/lamp", "hall/bell"], "perhaps"),
        (
            MessageDropped("c", "slow_reader", 9, topics=[str(one) for one in range(8)]),
            ["hall/door"],
            "most likely",
        ),
    ],
    ids=["another topic", "its topic", "its topic alone", "one of two", "some of many topics"],
)
async def test_why_uses_the_topics_of_a_drop(
    tmp_path: Path, drop: MessageDropped, topics: list[str], said: str
) -> None:
    begun: list[list[Event]] = [
        [SessionOpened("c", False, False, 4)],
        [Subscribed("c", [("hall/+", 0)])],
    ]
    source = turns_written(tmp_path, 0, *begun, [published(*topics), drop])
    (one,) = await find_stories(as_log(source), ref=position(3, 0), client="c")
    (line,) = (line for line in story_lines(one, "c", 0) if line.startswith("  c "))
    assert (f"{said} this one" in line) if said else ("which is not recorded" in line)


def test_a_drop_has_its_topics_and_reason_as_text() -> None:
    assert words(DENIED, {}) == (
        "dropped 1 message to hall/door: the permissions do not let the client publish to this "
        "topic (permissions)"
    )
    assert words(UNREAD, {}) == (
        "dropped 2 messages to hall/door, hall/lamp: the client had as many bytes of unread output "
        "as max_outbound_bytes allows"
    )
