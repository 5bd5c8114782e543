"""What the log records of a receiver besides a message: its earlier session, and unnamed drops."""

from __future__ import annotations

import contextlib
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, TypeGuard

from eventstore.format.event_parsing import entries
from eventstore.format.events import (
    LONGEST_DROPPED_TOPIC,
    MAX_DROPPED_TOPICS,
    MessageDropped,
    MessagePublished,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from eventstore.format.node_events import LimitsApplied, SessionSnapshot
from eventstore.format.positions import index_of, position, sequence_of
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.keys import SESSION
from eventstore.reading.log_points import LogPoint
from eventstore.reading.segment import BadIndex
from projections.past.event_reader import EventFilter, EventReader
from projections.past.indexed_sessions import IndexedSessions
from projections.past.message_story import topic_of
from projections.past.subscriber_state import EarlierSession, SubscriptionChange, UnreadDrops
from projections.state.snapshot import decode_session
from protocol.mqtt.shared_filters import split_share
from protocol.mqtt.topics import filters_overlap, matches

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from eventstore.format.event_parsing import Event
    from eventstore.format.positions import Position
    from eventstore.format.records import Record
    from eventstore.reading.log_source import LogSource
    from projections.past.event_reader import EventEntry
    from projections.past.message_story import MessageStory
    from projections.past.subscriber_state import SubscriberState
    from projections.state.session import SessionState

_PAST: Final = (
    SessionOpened,
    SessionClosed,
    SessionExpired,
    SessionSnapshot,
    Subscribed,
    Unsubscribed,
)
_NEAR: Final = 64
"""Maximum records before and after a message that are searched for subscriptions."""
_STEPS_MS: Final = 200
"""A message to many receivers is sent in steps: milliseconds after it that are searched for drops.
"""


async def add_receiver_past(
    source: LogSource, stories: Sequence[MessageStory], client: str
) -> None:
    """Add to histories the possible reasons why the log records no delivery to a session.

    Raises as ``LogSource.records``.
    """
    gone: list[MessageStory] = []
    for story in stories:
        subscriber = story.subscriber
        if subscriber is None and source.begin > 1 and not story.beginning:
            story.beginning = source.beginning()
        if subscriber is None or not story.effective_at:
            continue
        if subscriber.known and not subscriber.filters and not subscriber.shared:
            await _add_changes(source, story, subscriber, client)
        elif not subscriber.known:
            gone.append(story)
        elif subscriber.connected and _is_unrecorded(story, subscriber):
            drops = await _unread_drops(source, story, subscriber, client)
            story.subscriber = subscriber._replace(unread=drops)
    if gone and not await _look_up_earlier(source, gone, client):
        await _add_earlier_session(source, sorted(gone, key=attrgetter("effective_at")), client)


async def _add_changes(
    source: LogSource, story: MessageStory, subscriber: SubscriberState, client: str
) -> None:
    """Add to a history the matching subscription that ended just before, and one that began after.

    Only the nearest records are read.
    """
    topic, at = story.topic or "", story.effective_at
    selected = EventFilter((Subscribed, Unsubscribed), client)
    sequence = sequence_of(at)
    near = max(source.begin, sequence - _NEAR + 1)
    first = min(near, selected.begin_of_block(source, source.begin, sequence, _NEAR))
    ended: SubscriptionChange | None = None
    begun: SubscriptionChange | None = None
    records, turns = 0, TurnAssembler(anywhere=True)
    async for record in selected.records(source, first, source.last):
        records += record.sequence > sequence
        for part in turns.take(record)[1]:
            if not selected.may_select(part):
                continue
            for index, event in part.events():
                place = position(part.sequence, index)
                for name in _matching_filters(event, client, topic):
                    change = SubscriptionChange(name, place, part.time_ms)
                    if place > at and isinstance(event, Subscribed):
                        begun = begun or change
                    elif place < at:
                        ended = change if isinstance(event, Unsubscribed) else None
        if begun is not None or records >= _NEAR:
            break
    if ended is not None or begun is not None:
        story.subscriber = subscriber._replace(ended=ended, begun=begun)


def _matching_filters(event: Event, client: str, topic: str) -> list[str]:
    """Return the filters matching a topic that an event of a client grants or removes."""
    if isinstance(event, Subscribed) and event.session == client:
        names = [name for name, _ in event.filters]
    elif isinstance(event, Unsubscribed) and event.session == client:
        names = list(event.filters)
    else:
        return []
    return [name for name in names if matches(split_share(name)[1], topic)]


def _is_unrecorded(story: MessageStory, subscriber: SubscriberState) -> bool:
    """Return whether a session gets a message at QoS 0."""
    return bool(subscriber.filters) and not (
        story.qos and any(qos for _, qos in subscriber.filters)
    )


class ClientPast:
    """The subscriptions of a client and the end of its last session, at a moment of the log."""

    def __init__(self) -> None:
        self.seen = False
        self.connected = False
        self.since: tuple[Position, int] | None = None
        """Position and time since which it is connected or offline; None: not in the log."""
        self.filters: dict[str, int] = {}
        """Its subscriptions, also those of a session that has ended, with their QoS."""
        self._clean = False
        self.ended: tuple[Position, int, str, bool] | None = None
        """The end of its last session: position, time, reason, and whether its connection ended
        then; None: the session has not ended."""
        self._parts: list[dict[str, Any]] = []

    def take(self, event: Event, at: Position, ms: int) -> None:
        """Process an event of the client."""
        self.seen = True
        if isinstance(event, SessionOpened):
            if not event.resumed:
                self.filters.clear()
            self._clean, self.ended = event.clean, None
            self.connected, self.since = True, (at, ms)
        elif isinstance(event, Subscribed):
            self.filters.update((name, qos) for name, qos in event.filters)
        elif isinstance(event, Unsubscribed):
            for name in event.filters:
                self.filters.pop(name, None)
        elif isinstance(event, SessionClosed):
            self.connected, self.since = False, (at, ms)
            if event.expiry is not None:
                self._clean = not event.expiry
            if self._clean:
                self.ended = (at, ms, event.reason, True)
        elif isinstance(event, SessionExpired):
            self.ended = (at, ms, event.reason, False)
        elif isinstance(event, SessionSnapshot):
            self._snapshot(event)

    def _snapshot(self, event: SessionSnapshot) -> None:
        if event.part == 0:
            self._parts = []
        self._parts.append(event.state)
        if event.last:
            parts, self._parts = self._parts, []
            self._clean = bool(parts[0].get("clean"))
            state = decode_session(event.session, parts)
            self.filters = {held.filter: held.qos for held in state.active()}
            self.connected, self.ended = state.connected, None

    def earlier(self, topic: str) -> EarlierSession | None:
        """Return its last session, if that has ended."""
        if self.ended is None:
            return None
        return EarlierSession(*self.ended, [name for name, _ in self.matching(topic)])

    def matching(self, topic: str) -> list[tuple[str, int]]:
        """Return its subscriptions that match a topic or overlap a filter, with their QoS."""
        return [
            (name, qos)
            for name, qos in self.filters.items()
            if filters_overlap(split_share(name)[1], topic)
            and (split_share(name)[1][0] not in "+#" or not topic.startswith("$"))
        ]


async def client_past(source: LogSource, client: str, last: int) -> ClientPast:
    """Return what a log records of a client up to a record; raises as ``LogSource.records``."""
    with contextlib.suppress(BadIndex):
        known = await _indexed_past(source, client, last)
        if known is not None:
            return known
    past = ClientPast()
    reader = EventReader(source, EventFilter(_PAST, client))
    async for entry in reader.entries(
        LogPoint(source.begin, 0), LogPoint(last), TurnAssembler(anywhere=True), ended=True
    ):
        if not entry.void:
            past.take(entry.event, entry.at, entry.time_ms)
    return past


async def _indexed_past(source: LogSource, client: str, last: int) -> ClientPast | None:
    """Return the same from the states of the index, None if it does not have them."""
    if source.index is None:
        return None
    sessions, end = IndexedSessions(source, source.index), LogPoint(last)
    ends = EventFilter((SessionOpened, SessionClosed, SessionExpired), client)
    turns = TurnAssembler(anywhere=True)
    found = await EventReader(source, ends).latest(1, end, turns, ended=True)
    if not found or found[-1].void or not await sessions.covers(found[-1].at):
        return None
    entry = found[-1]
    past, state = ClientPast(), await sessions.at(client, end)
    past.seen, past.since = True, (entry.at, entry.time_ms)
    past.connected = state is not None and state.connected
    if state is None:
        event = entry.event
        if not isinstance(event, (SessionClosed, SessionExpired)):
            return None
        closed = isinstance(event, SessionClosed)
        past.ended = (entry.at, entry.time_ms, event.reason, closed)
        state, _ = await sessions.before(client, entry.at)
    past.filters = {held.filter: held.qos for held in state.active()} if state is not None else {}
    return past


async def _look_up_earlier(source: LogSource, stories: Sequence[MessageStory], client: str) -> bool:
    """Add to histories the session that the client had before, with the index of the log.

    Returns whether the index suffices.
    """
    if source.index is None:
        return False
    reader = EventReader(source, EventFilter((SessionClosed, SessionExpired), client))
    sessions = IndexedSessions(source, source.index)
    try:
        seen = bool(source.index.sequences(SESSION + client))
        if not seen:
            whole = EventReader(source, EventFilter((), client))
            turns = TurnAssembler(anywhere=True)
            seen = bool(await whole.latest(1, LogPoint(source.last), turns, ended=True))
        found: list[tuple[MessageStory, EarlierSession | None]] = []
        for story in stories:
            if not await sessions.covers(story.effective_at):
                return False
            end = LogPoint(sequence_of(story.effective_at), index_of(story.effective_at))
            last = await reader.latest(1, end, TurnAssembler(anywhere=True), ended=True)
            earlier = None
            for entry in last:
                if entry.void or not await sessions.covers(entry.at):
                    return False
                state, _ = await sessions.before(client, entry.at)
                earlier = _ended_session(entry, state, story.topic or "")
            found.append((story, earlier))
    except BadIndex:
        return False
    for story, earlier in found:
        if story.subscriber is not None:
            story.subscriber = story.subscriber._replace(seen=seen, earlier=earlier)
    return True


def _ended_session(
    entry: EventEntry, state: SessionState | None, topic: str
) -> EarlierSession | None:
    """Return a session that ended with an event, with its state before."""
    event = entry.event
    if not isinstance(event, (SessionClosed, SessionExpired)):
        return None
    active = state.active() if state is not None else ()
    filters = [one.filter for one in active if matches(split_share(one.filter)[1], topic)]
    closed = isinstance(event, SessionClosed)
    return EarlierSession(entry.at, entry.time_ms, event.reason, closed, filters)


async def _add_earlier_session(
    source: LogSource, stories: Sequence[MessageStory], client: str
) -> None:
    """Add to histories, in the order of their effect, the session that the client had before."""
    past = ClientPast()
    waiting = list(stories)
    reader = EventReader(source, EventFilter(_PAST, client))
    async for entry in reader.entries(
        LogPoint(source.begin, 0), LogPoint(source.last), TurnAssembler(anywhere=True), ended=True
    ):
        if entry.void:
            continue
        while waiting and entry.at > waiting[0].effective_at:
            _add_past(waiting.pop(0), past)
        past.take(entry.event, entry.at, entry.time_ms)
        if not waiting:
            break
    for story in waiting:
        _add_past(story, past)
    if past.seen:
        for story in stories:
            if story.subscriber is not None:
                story.subscriber = story.subscriber._replace(seen=True)


def _add_past(story: MessageStory, past: ClientPast) -> None:
    if story.subscriber is not None and story.topic is not None:
        earlier = past.earlier(story.topic)
        story.subscriber = story.subscriber._replace(seen=past.seen, earlier=earlier)


async def _unread_drops(
    source: LogSource, story: MessageStory, subscriber: SubscriberState, client: str
) -> UnreadDrops | None:
    """Return the drops for a session that did not read, when a message took effect."""
    sequence = sequence_of(story.effective_at)
    (record,) = (one for one in await source.some([sequence]) if one.sequence == sequence)
    until = record.time_ms + _STEPS_MS
    at, time_ms, count, messages = 0, 0, 0, 0
    alike = 0
    """Number of the messages among them on its topic."""
    single = True
    """Whether each of the drops names its topic alone."""
    last = sequence
    topic = story.topic or ""
    async for part in source.records(sequence - record.part, source.last):
        for index, event in part.events():
            if _is_unread(event, client, topic):
                at, time_ms = position(part.sequence, index), part.time_ms
                count += event.count
                single = single and len(event.topics) == 1
            else:
                messages += _matching(event, subscriber)
                alike += _on_topic(event, topic)
        last = part.sequence
        if part.last:
            break
    if not (count and messages) and last < source.last:
        # A message to many receivers is sent in steps, in later turns.
        messages = alike = 0
        turns = TurnAssembler()
        async for record in source.records(last + 1, source.last):
            if record.time_ms > until:
                break
            for part in turns.take(record)[1]:
                if not any(raw["e"] == "MessageDropped" for raw in part.raw_events):
                    continue
                for index, event in part.events():
                    if _is_unread(event, client, topic):
                        at, time_ms = position(part.sequence, index), part.time_ms
                        count += event.count
    if not count:
        return None
    limits = await _limits(source, sequence_of(at))
    return UnreadDrops(at, time_ms, count, (single and alike) or messages, limits)


def may_concern(event: MessageDropped, matches: Callable[[str], bool]) -> bool:
    """Return whether dropped messages without a position may be on a matching topic.

    Earlier versions recorded no topics of most drops, and of many topics some are recorded.
    """
    named = event.topics
    return not named or len(named) >= MAX_DROPPED_TOPICS or any(map(matches, named))


def _is_unread(event: Event, client: str, topic: str) -> TypeGuard[MessageDropped]:
    """Return whether an event may drop a message on a topic of a client that did not read."""
    return (
        isinstance(event, MessageDropped)
        and event.session == client
        and event.reason == "slow_reader"
        and not event.refs
        and may_concern(event, topic[:LONGEST_DROPPED_TOPIC].__eq__)
    )


def _on_topic(event: Event, topic: str) -> int:
    """Return how many messages on a topic take effect with an event that names their topics."""
    if not isinstance(event, MessagePublished) or (event.qos == 2 and not event.will):
        return 0
    return sum(topic_of(event, offset) == topic for offset in range(event.count))


def _matching(event: Event, subscriber: SubscriberState) -> int:
    """Return how many messages for a session take effect with an event."""
    if isinstance(event, Released):
        return entries(event)
    if not isinstance(event, MessagePublished) or (event.qos == 2 and not event.will):
        return 0
    filters = [one for one, _ in subscriber.filters]
    known: dict[str, bool] = {}
    found = 0
    for offset in range(event.count):
        topic = topic_of(event, offset)
        if topic not in known:
            known[topic] = any(matches(one, topic) for one in filters)
        found += known[topic]
    return found


async def _limits(source: LogSource, last: int) -> Mapping[str, Any] | None:
    """Return the limits that applied at a record; None: not recorded."""
    index, first = source.index, source.begin
    found: list[Record] = []
    if index is not None:
        try:
            latest = index.latest_rare("LimitsApplied", min(last, index.last))
            if latest is not None and latest >= source.begin:
                found = [one for one in await source.some([latest]) if one.sequence == latest]
            first = index.last + 1
        except BadIndex:
            found = []
    limits = None
    for record in found:
        limits = _last_limits(record) or limits
    if first <= last:
        async for record in source.records(first, last):
            limits = _last_limits(record) or limits
    return limits


def _last_limits(record: Record) -> Mapping[str, Any] | None:
    if not any(raw["e"] == "LimitsApplied" for raw in record.raw_events):
        return None
    return [event.limits for _, event in record.events() if isinstance(event, LimitsApplied)][-1]
