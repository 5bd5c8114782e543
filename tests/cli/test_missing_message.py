"""The answer of ``foldmq why`` where the log has no message."""

import asyncio
import gc
from collections.abc import AsyncIterator
from typing import Any, cast

import pytest
from harness.logs import LogBuilder

from eventstore.format.events import (
    MessageDropped,
    MessagePublished,
    SessionClosed,
    SessionOpened,
    Subscribed,
    SubscriptionDenied,
    WillArmed,
)
from eventstore.format.positions import MAX_INDEX, position
from eventstore.format.records import Record, decode_record
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_source import LogSource
from projections.past import missing_message
from projections.past.missing_message import explain_no_message
from projections.past.subscriber_state import DeniedFilter


class HeldSource:
    """A log in memory without an index."""

    first = begin = 1
    index = LogIndex((), 1)

    def __init__(self, log: LogBuilder) -> None:
        self._log = log
        self.last = log.last

    async def records(self, first: int, last: int) -> AsyncIterator[Record]:
        for sequence in range(first, last + 1):
            yield decode_record(sequence, self._log.records[sequence - 1])


@pytest.fixture(scope="module")
def source() -> LogSource:
    log = LogBuilder("n")
    log.record(SessionOpened("spy", False, False, 5))
    log.record(SubscriptionDenied("spy", ["$share/g/secret/+", "a/#", "b"], [0x87, 0x97, 0x8F]))
    log.record(WillArmed("pump", "wills/pump", 1, False, 1, 0), payloads=[b"x"])
    log.record(
        MessageDropped("pump", "not_permitted", 1, topics=["secret/z"]),
        MessageDropped("slug", "slow_reader", 3),
        MessageDropped("snail", "slow_reader", 2, topics=["big/q1"]),
        MessageDropped("snail", "slow_reader", 5, topics=["big/q1", "small"]),
    )
    log.record(
        MessagePublished("p", 1, False, ["hall/door", "lamp"], [0, 1], [1, 2], 1, 0, 2),
        payloads=[b"xy"],
    )
    return cast("LogSource", HeldSource(log))


def told(source: LogSource, *asked: Any) -> list[str]:
    """The text after the sentence on QoS 0 and, with a client, the one on its session."""
    said = asyncio.run(explain_no_message(source, *asked)).split("; ")
    return said[1 if asked[1] is None else 2 :]


def standing(source: LogSource, topic: str, client: str) -> str:
    said = asyncio.run(explain_no_message(source, topic, client, None)).split("; ")
    assert said[0] == "messages of QoS 0 are recorded only if they are retained"
    return said[1]


def test_possible_causes_are_listed(source: LogSource) -> None:
    assert told(source, "hall/doors", None, None) == ["there are messages on hall/door"]
    assert told(source, "hall/doors", "spy", position(2, MAX_INDEX)) == []
    for topic in ("secret/x", "secret/#", "secret/+"):
        (denied,) = told(source, topic, "spy", None)[:1]
        assert denied.startswith("spy was denied $share/g/secret/+ at 2.0, ")
        assert denied.endswith(": the permissions do not allow this subscription (permissions)")
    (limit,) = told(source, "a/b/c", "spy", None)
    assert limit.startswith("spy was denied a/# at 2.0, ")
    assert ": it has as many as the limits allow (max_subscriptions" in limit
    assert told(source, "a/#", "spy", None) == [limit], "a filter that was denied as it is"
    assert told(source, "a/b/c", "other", None) == []
    whole = asyncio.run(explain_no_message(source, "nothing", None, None))
    assert whole == "messages of QoS 0 are recorded only if they are retained"


def test_denied_publications_are_named(source: LogSource) -> None:
    for topic in ("secret/z", "secret/#"):
        (denied,) = told(source, topic, "pump", None)
        assert denied.startswith("a message or will of pump on secret/z was dropped at 4.0, ")
        assert denied.endswith(
            ": the permissions do not let the client publish to this topic (permissions)"
        )
    assert told(source, "secret/z", "pump", position(3, MAX_INDEX)) == []
    unread, also = told(source, "secret/z", "slug", None)
    assert "secret/z" not in unread
    assert also == denied, "whoever asks"


def test_messages_that_a_client_did_not_read_are_counted(source: LogSource) -> None:
    (unread,) = told(source, "big/q0", "slug", None)
    assert unread.startswith("3 messages were dropped for slug, the last at 4.1, ")
    assert unread.endswith("(max_outbound_bytes): the log does not record the topic of each")
    named, together = told(source, "big/q1", "snail", None)
    assert together.startswith(
        "5 messages on big/q1, small were dropped for snail, the last at 4.3"
    )
    assert together.endswith(": the log only records the total for these topics")
    assert named.startswith("2 messages on big/q1 were dropped for snail, the last at 4.2, ")
    assert named.endswith("because it did not read (max_outbound_bytes)")
    assert told(source, "big/q0", "snail", None) == []


def test_a_will_that_is_not_published_is_named(source: LogSource) -> None:
    for topic in ("wills/pump", "wills/+"):
        (will,) = told(source, topic, None, None)
        assert will.startswith("pump has a will on wills/pump since 3.0, ")
        assert will.endswith(": it is not published yet")


def test_the_session_of_the_client_is_described() -> None:
    log = LogBuilder("n")
    for name in ("here", "away", "gone", "pool"):
        log.record(SessionOpened(name, False, name == "gone", 5))
    log.record(
        Subscribed("here", [("hall/+", 1)]),
        Subscribed("away", [("hall/#", 0)]),
        Subscribed("gone", [("hall/#", 0)]),
        Subscribed("pool", [("$share/g/hall/#", 0)]),
    )
    log.record(SessionClosed("away", "closed"), SessionClosed("gone", "keep_alive"))
    source = cast("LogSource", HeldSource(log))
    assert standing(source, "hall/x", "Here") == "Here is not known to the log"
    assert standing(source, "hall/x", "here").startswith(
        "here is subscribed (hall/+ QoS 1) and connected since 1.0, "
    )
    assert standing(source, "hall/x", "here").endswith(": QoS 0 messages to it are not recorded")
    for topic in ("hall/x", "hall/+"):
        assert standing(source, topic, "away").startswith(
            "away is subscribed (hall/# QoS 0) but offline since 6.0, "
        )
    assert standing(source, "hall/x", "away").endswith(": QoS 0 messages are not queued")
    assert standing(source, "hall/x", "gone").startswith(
        "gone has no session: its last one, which was subscribed to hall/#, ended with its "
        "connection at 6.1, "
    )
    assert standing(source, "halls/x", "here").endswith(
        ", and none of its subscriptions matches, but hall/+ nearly does"
    )
    assert standing(source, "lamp", "away").endswith(", and none of its subscriptions matches")
    assert standing(source, "hall/x", "pool").endswith(
        "shares $share/g/hall/# QoS 0: each message goes to one member"
    )


def test_drops_are_counted_without_keeping_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """The filters that were denied are read after the drops."""
    log = LogBuilder("n")
    log.record(SessionOpened("snail", False, False, 5))
    for at in range(500):
        log.record(MessageDropped("snail", "slow_reader", 2, topics=[f"big/q{at % 7}"]))
    kept: list[int] = []
    denied = missing_message._denied

    async def counted(*asked: Any) -> list[DeniedFilter]:
        kept.append(sum(isinstance(each, MessageDropped) for each in gc.get_objects()))
        return await denied(*asked)

    monkeypatch.setattr(missing_message, "_denied", counted)
    before = sum(isinstance(each, MessageDropped) for each in gc.get_objects())
    (unread,) = told(cast("LogSource", HeldSource(log)), "big/#", "snail", None)
    assert unread.startswith("1,000 messages on big/q0, big/q1, ")
    assert ", the last at 501.0, " in unread
    assert kept[0] - before < 10
