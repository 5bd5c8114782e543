"""Possible reasons why a log records no message on a topic."""

from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from difflib import get_close_matches
from functools import partial
from itertools import islice
from operator import attrgetter
from typing import Final

from eventstore import display
from eventstore.format.events import (
    MAX_DROPPED_TOPICS,
    MessageDropped,
    WillArmed,
    WillCancelled,
    WillFired,
)
from eventstore.format.positions import MAX_INDEX, Position, position, sequence_of
from eventstore.reading import position_text
from eventstore.reading.indexed_reading import asked_of
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.segment import BadIndex
from eventstore.reasons import drop_text
from projections.past.event_reader import EventEntry, EventFilter, effective_entries
from projections.past.event_text import denial_text
from projections.past.indexed_sessions import IndexedSessions
from projections.past.receiver_past import ClientPast, client_past, may_concern
from projections.past.receiver_reason import ended_session_text, place_of
from projections.past.subscriber_state import DeniedFilter, filters_alike
from protocol.mqtt.shared_filters import SHARE, split_share
from protocol.mqtt.topics import matches

_MAX_TOPICS: Final = 20_000
"""Maximum number of topics that are compared with the requested one."""
_MAX_ALIKE: Final = 3
_ALIKE: Final = 0.75
_MAX_READ: Final = 16


async def explain_no_message(
    source: LogSource, topic: str, client: str | None, until: Position | None
) -> str:
    """Return the possible reasons for no message on a topic, for the end of a sentence.

    ``topic`` may be a filter; ``until`` is the position up to which the log is read. Raises as
    ``LogSource.records``.
    """
    end = source.last if until is None else min(source.last, sequence_of(until))
    reasons = ["messages of QoS 0 are recorded only if they are retained"]
    if client is not None:
        past = await client_past(source, client, LogPoint(end))
        reasons.append(
            f"{display.name(client)} {_unrecorded_reason(past, topic, then=until is not None)}"
        )
        reasons += await _of_client(source, topic, client, end)
    reasons += await _refused(source, topic, end)
    reasons += await _wills(source, topic, end)
    if not _has_wildcard(topic):
        topics = await _topics(source, end)
        topics.pop(topic, None)
        alike = [
            name
            for name in get_close_matches(topic, topics, _MAX_ALIKE, _ALIKE)
            if topics[name] or await _is_published(source, name, end)
        ]
        if alike:
            reasons.append(f"there are messages on {', '.join(map(display.name, alike))}")
    return "; ".join(reasons)


def _has_wildcard(topic: str) -> bool:
    return "+" in topic or "#" in topic


def _unrecorded_reason(past: ClientPast, topic: str, *, then: bool) -> str:
    """Return why a client would have got a message of QoS 0 on a topic, or not.

    ``then``: at a point in the past, not now.
    """
    be, have = ("was", "had") if then else ("is", "has")
    if not past.seen:
        return f"{be} not known to the log"
    earlier = past.earlier(topic)
    if earlier is not None:
        return f"{have} no session: {ended_session_text(earlier)}"
    since = f" since {place_of(past.since)}" if past.since is not None else ""
    state = f"{'connected' if past.connected else 'offline'}{since}"
    filters = past.matching(topic)
    if not filters:
        alike = [] if _has_wildcard(topic) else filters_alike(topic, [*past.filters])
        which = ", ".join(map(display.name, alike))
        does = "does" if len(alike) == 1 else "do"
        nearly = f", but {which} nearly {does}" if alike else ""
        return f"{be} {state}, and none of its subscriptions matches{nearly}"
    granted = ", ".join(f"{display.name(name)} QoS {qos}" for name, qos in filters)
    if not past.connected:
        return f"{be} subscribed ({granted}) but {state}: QoS 0 messages are not queued"
    if all(name.startswith(SHARE) for name, _ in filters):
        return f"{be} {state} and shares {granted}: each message goes to one member"
    return f"{be} subscribed ({granted}) and {state}: QoS 0 messages to it are not recorded"


async def _of_client(source: LogSource, topic: str, client: str, end: int) -> list[str]:
    """Return the filters for a topic that a client was denied, and its drops as a slow reader."""
    covers = partial(matches, topic)
    unread = {note: _UnreadDrops() for note in _NOTES}
    async for entry in _drops(source, topic, client, end):
        event = entry.event
        if (
            isinstance(event, MessageDropped)
            and event.reason == "slow_reader"
            and may_concern(event, covers)
        ):
            if not event.topics or len(event.topics) >= MAX_DROPPED_TOPICS:
                note = _UNNAMED
            else:
                note = "" if all(map(covers, event.topics)) else _SHARED
            unread[note].add(entry, event)
    filters = {
        each.filter: each
        for each in await _denied(source, client, end)
        if covers(split_share(each.filter)[1]) or matches(split_share(each.filter)[1], topic)
    }
    who = display.name(client)
    reasons = [
        f"{who} was denied {display.name(name)} at {place_of(each)}: {denial_text(each.code)}"
        for name, each in islice(reversed(filters.items()), _MAX_ALIKE)
    ]
    reasons += [drops.text(who) + note for note, drops in unread.items() if drops.latest]
    return reasons


@dataclass(slots=True)
class _UnreadDrops:
    """Messages that were dropped because a client did not read: their number and their topics."""

    count: int = 0
    topics: dict[str, None] = field(default_factory=dict)
    latest: EventEntry | None = None

    def add(self, entry: EventEntry, event: MessageDropped) -> None:
        """Count the messages of an event."""
        self.count += event.count
        if len(event.topics) < MAX_DROPPED_TOPICS:
            self.topics.update(dict.fromkeys(event.topics))
        self.latest = entry._replace(area=memoryview(b""), record=None)

    def text(self, who: str) -> str:
        """Return what was dropped, for a sentence."""
        topics = position_text.several(map(display.name, self.topics), len(self.topics))
        on = f" on {topics}" if self.topics else ""
        were = "was" if self.count == 1 else "were"
        place = place_of(self.latest) if self.latest is not None else ""
        return (
            f"{display.count_of(self.count, 'message')}{on} {were} dropped for {who}, the last at "
            f"{place}, because it did not read (max_outbound_bytes)"
        )


_SHARED: Final = ": the log only records the total for these topics"
_UNNAMED: Final = ": the log does not record the topic of each"
_NOTES: Final = ("", _SHARED, _UNNAMED)


async def _denied(source: LogSource, client: str, end: int) -> list[DeniedFilter]:
    """Return the filters that a client was denied and not granted since, the latest last."""

    async def ask(log: LogSource) -> list[DeniedFilter]:
        sessions = IndexedSessions(log)
        if not log.index.empty and not await sessions.covers(position(end, 0)):
            raise BadIndex("the index does not cover the session")
        _, denied = await sessions.before(client, position(end, MAX_INDEX))
        return denied.filters()

    return sorted(await asked_of(source, ask), key=attrgetter("at"))


async def _drops(source: LogSource, topic: str, client: str, end: int) -> AsyncIterator[EventEntry]:
    """Yield the drops for a client that may concern a topic.

    With an index, only those that name it, and those in the last records with the client.
    """
    chosen = EventFilter((MessageDropped,), client)
    first = source.begin
    if not source.index.empty:
        first = chosen.begin_of_block(source, source.begin, end, _MAX_READ)
        if first > source.begin:
            first = chosen.begin_of_block(source, source.begin, first - 1, _MAX_READ)
        on_topic = EventFilter((MessageDropped,), client, topic)
        async for entry in effective_entries(source, on_topic, end=LogPoint(first - 1)):
            yield entry
    async for entry in effective_entries(source, chosen, first, LogPoint(end)):
        yield entry


async def _refused(source: LogSource, topic: str, end: int) -> list[str]:
    """Return the latest publications on a topic that were dropped instead of being recorded."""
    places: dict[tuple[str, str, str], str] = {}
    dropped = EventFilter((MessageDropped,), None, topic)
    async for entry in effective_entries(source, dropped, end=LogPoint(end)):
        event = entry.event
        if isinstance(event, MessageDropped) and event.reason != "slow_reader" and not event.refs:
            for name in event.topics:
                if matches(topic, name):
                    what = (event.session, name, event.reason)
                    places.pop(what, None)
                    places[what] = place_of(entry)
    return [
        f"a message or will of {display.name(who)} on {display.name(name)} was dropped at {place}: "
        f"{drop_text(reason, received=False)}"
        for (who, name, reason), place in islice(reversed(places.items()), _MAX_ALIKE)
    ]


async def _wills(source: LogSource, topic: str, end: int) -> list[str]:
    """Return the outcome of the latest wills on a topic that were not recorded as messages."""
    armed: dict[str, EventEntry] = {}
    wills = EventFilter((WillArmed,), None, topic)
    async for entry in effective_entries(source, wills, end=LogPoint(end)):
        if isinstance(entry.event, WillArmed):
            armed.pop(entry.event.session, None)
            armed[entry.event.session] = entry
    reasons = []
    for session, entry in list(armed.items())[-_MAX_ALIKE:]:
        will = entry.event
        if not isinstance(will, WillArmed):
            continue
        fate = "it is not published yet"
        chosen = EventFilter((WillArmed, WillFired, WillCancelled), session)
        first = sequence_of(entry.at)
        async for later in effective_entries(source, chosen, first, LogPoint(end)):
            if later.at <= entry.at:
                continue
            if isinstance(later.event, WillFired):
                fate = f"it was published at {place_of(later)}"
            elif isinstance(later.event, WillCancelled):
                why = f" ({later.cause})" if later.cause else ""
                fate = f"it was discarded at {place_of(later)}{why}"
            else:
                fate = f"it was replaced at {place_of(later)}"
            break
        reasons.append(
            f"{display.name(session)} has a will on {display.name(will.topic)} "
            f"since {place_of(entry)}: {fate}"
        )
    return reasons


async def _is_published(source: LogSource, topic: str, end: int) -> bool:
    """Return whether a topic of the index belongs to messages, from the latest of its records.

    The index also has the topics of wills.
    """
    try:
        named = source.index.topic(topic, 0, end)[-_MAX_READ:]
    except BadIndex:
        return True
    return any(
        raw["e"] != "WillArmed" and topic in raw.get("topics", ())
        for record in await source.some(named)
        for raw in record.raw_events
    )


async def _topics(source: LogSource, end: int) -> dict[str, bool]:
    """Return a bounded number of topics, and whether each was read from messages.

    Others are from the index, if there is one.
    """
    topics: dict[str, bool] = {}
    read = False

    def note(topic: str) -> bool:
        if len(topics) < _MAX_TOPICS or topic in topics:
            topics[topic] = read
        return False

    first = source.index.last + 1
    try:
        source.index.topics("", note, last=end)
    except BadIndex:
        topics.clear()
        first = source.begin
    read = True
    if first <= end:
        async for record in source.records(first, end):
            for raw in record.raw_events:
                if raw["e"] == "MessagePublished":
                    for topic in raw["topics"]:
                        note(topic)
    return topics
