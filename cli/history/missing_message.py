"""What ``foldmq why`` says of a topic on which the log records no message."""

from __future__ import annotations

from difflib import get_close_matches
from itertools import islice
from typing import TYPE_CHECKING, Final

from cli.common import text
from eventstore.format import (
    MessageDropped,
    SubscriptionDenied,
    TurnAssembler,
    WillArmed,
    WillCancelled,
    WillFired,
    format_position,
    from_runs,
    sequence_of,
)
from eventstore.index import BadIndex
from eventstore.reading import LogPoint
from projections.replay import EventFilter, EventReader, reason_text
from protocol.mqtt import ReasonCode, matches
from protocol.mqtt5 import split_share

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from eventstore.format import Position
    from eventstore.reading import LogSource
    from projections.replay import EventEntry

_MOST_TOPICS: Final = 20_000
"""Maximum topics that are compared with the one that was asked for."""
_MOST_ALIKE: Final = 3
_ALIKE: Final = 0.75
_MOST_READ: Final = 16


async def explain_no_message(
    source: LogSource, topic: str, client: str | None, until: Position | None
) -> str:
    """Return what may explain that there is no message on a topic, for the end of a sentence.

    ``topic`` may be a filter; ``until`` is the position up to which the log is read. Raises as
    ``LogSource.records``.
    """
    last = source.last if until is None else min(source.last, sequence_of(until))
    found = ["messages of QoS 0 are recorded only if they are retained"]
    if client is not None:
        found += await _of_client(source, topic, client, last)
    found += await _wills(source, topic, last)
    if not _has_wildcard(topic):
        known = await _topics(source, last)
        known.pop(topic, None)
        alike = [
            one
            for one in get_close_matches(topic, known, _MOST_ALIKE, _ALIKE)
            if known[one] or await _is_published(source, one, last)
        ]
        if alike:
            found.append(f"there are messages on {', '.join(map(text.name, alike))}")
    return "; ".join(found)


def _has_wildcard(topic: str) -> bool:
    return "+" in topic or "#" in topic


async def _of_client(source: LogSource, topic: str, client: str, last: int) -> list[str]:
    """Return what was denied to a client on a topic, and how much it did not read."""
    filters: dict[str, int] = {}
    published: dict[str, str] = {}
    unread, latest = 0, ""
    chosen = EventFilter((SubscriptionDenied, MessageDropped), client)
    async for entry in _entries(source, chosen, last):
        event = entry.event
        if isinstance(event, SubscriptionDenied):
            for name, code in zip(event.filters, from_runs(event.reasons), strict=False):
                plain = split_share(name)[1]
                if plain == topic or (not _has_wildcard(topic) and matches(plain, topic)):
                    filters[name] = code
        elif isinstance(event, MessageDropped) and event.reason == "not_permitted":
            for name in event.topics:
                if matches(topic, name):
                    published[name] = _place(entry)
        elif isinstance(event, MessageDropped) and event.reason == "slow_reader":
            unread += event.count
            latest = _place(entry)
    who = text.name(client)
    found = [
        f"{who} was denied {text.name(name)}: {denial_text(code)}" for name, code in filters.items()
    ]
    found += [
        f"the permissions did not let {who} publish to {text.name(name)} at {place} (permissions)"
        for name, place in islice(published.items(), _MOST_ALIKE)
    ]
    if unread:
        were = "message was" if unread == 1 else "messages were"
        found.append(
            f"{unread:,} {were} dropped for {who}, at last at {latest}, because it did not read "
            "(max_outbound_bytes): the log does not name their topics"
        )
    return found


async def _entries(source: LogSource, chosen: EventFilter, last: int) -> AsyncIterator[EventEntry]:
    """Yield the selected events that took effect."""
    async for entry in EventReader(source, chosen).entries(
        LogPoint(source.begin, 0), LogPoint(last), TurnAssembler(anywhere=True), ended=True
    ):
        if not entry.void:
            yield entry


def _place(entry: EventEntry) -> str:
    return f"{format_position(entry.at)}, {text.clock(entry.time_ms)}"


async def _wills(source: LogSource, topic: str, last: int) -> list[str]:
    """Return what became of the latest wills on a topic that were not recorded as messages."""
    armed: dict[str, EventEntry] = {}
    async for entry in _entries(source, EventFilter((WillArmed,), None, topic), last):
        if isinstance(entry.event, WillArmed):
            armed.pop(entry.event.session, None)
            armed[entry.event.session] = entry
    found = []
    for session, entry in list(armed.items())[-_MOST_ALIKE:]:
        will = entry.event
        if not isinstance(will, WillArmed):
            continue
        fate = "it is not published so far"
        chosen = EventFilter((WillArmed, WillFired, WillCancelled), session)
        async for later in _entries(source, chosen, last):
            if later.at <= entry.at:
                continue
            if isinstance(later.event, WillFired):
                fate = f"it was published at {_place(later)}"
            elif isinstance(later.event, WillCancelled):
                fate = f"it was discarded unpublished at {_place(later)}"
            else:
                fate = f"it was replaced at {_place(later)}"
            break
        found.append(
            f"{text.name(session)} has a will on {text.name(will.topic)} since {_place(entry)}: "
            f"{fate}"
        )
    return found


async def _is_published(source: LogSource, topic: str, last: int) -> bool:
    """Return whether a topic of the index is one of messages, from the latest of its records.

    The index has the topics of wills, too.
    """
    if source.index is None:
        return False
    try:
        named = source.index.topic(topic, 0, last)[-_MOST_READ:]
    except BadIndex:
        return True
    return any(
        raw["e"] != "WillArmed" and topic in raw.get("topics", ())
        for record in await source.some(named)
        for raw in record.raw_events
    )


async def _topics(source: LogSource, last: int) -> dict[str, bool]:
    """Return topics, a bounded number, and whether they were read from messages.

    Others are from the index, where there is one.
    """
    found: dict[str, bool] = {}
    read = False

    def note(topic: str) -> bool:
        if len(found) < _MOST_TOPICS or topic in found:
            found[topic] = read
        return False

    first = source.begin
    if source.index is not None:
        try:
            source.index.topics("", note, last=last)
            first = source.index.last + 1
        except BadIndex:
            found.clear()
    read = True
    if first <= last:
        async for record in source.records(first, last):
            for raw in record.raw_events:
                if raw["e"] == "MessagePublished":
                    for topic in raw["topics"]:
                        note(topic)
    return found


def denial_text(code: int) -> str:
    """Return why a subscription was denied, from its reason code."""
    return _DENIALS.get(code) or reason_text(code)


_DENIALS: dict[int, str] = {
    ReasonCode.NOT_AUTHORIZED: "the permissions do not let it subscribe to that (permissions)",
    ReasonCode.QUOTA_EXCEEDED: "it has as many as it may (max_subscriptions, max_wildcards, "
    "max_wildcard_patterns, max_shared_members, max_subscriptions_total)",
    ReasonCode.TOPIC_FILTER_INVALID: "the filter is not valid here",
    ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "it may not share subscriptions "
    "(shared_for_mqtt3)",
}
