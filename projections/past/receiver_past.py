"""What the log records of a receiver besides a message: its earlier session, and unnamed drops."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeGuard

from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import (
    LOG_SESSION,
    LONGEST_DROPPED_TOPIC,
    MAX_DROPPED_TOPICS,
    MessageDropped,
    MessagePublished,
    Released,
    ReplayReached,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
    Unsubscribed,
)
from eventstore.format.node_events import LimitsApplied
from eventstore.format.positions import Position, index_of, position, sequence_of
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.indexed_reading import asked_of
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.segment import BadIndex
from projections.past.event_reader import EventEntry, EventFilter, EventReader, effective_entries
from projections.past.indexed_sessions import IndexedSessions
from projections.past.message_story import MessageStory, topic_of
from projections.past.subscriber_state import (
    EarlierSession,
    ReadMark,
    ReplayPast,
    SubscriberState,
    SubscriptionChange,
    UnreadDrops,
)
from projections.state.session import ReplayState, SessionState
from protocol.mqtt.shared_filters import split_share
from protocol.mqtt.topics import filters_overlap, matches

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
    replaying = await replays_of(source, client) if stories else None
    for story in stories:
        subscriber = story.subscriber
        if subscriber is None and source.begin > 1 and not story.beginning:
            story.beginning = source.beginning()
        at = story.effective_at
        if subscriber is None or not at:
            continue
        if subscriber.known and not subscriber.filters and not subscriber.shared:
            await _add_changes(source, story, subscriber, client)
        elif not subscriber.known:
            past = await client_past(source, client, LogPoint(sequence_of(at), index_of(at)))
            earlier = past.earlier(story.topic or "")
            seen = past.seen or await _is_seen(source, client, LogPoint(source.last))
            story.subscriber = subscriber._replace(seen=seen, earlier=earlier)
        elif subscriber.connected and _is_unrecorded(story, subscriber):
            drops = await _unread_drops(source, story, subscriber, client)
            story.subscriber = subscriber._replace(unread=drops)
        if replaying is not None and story.subscriber is not None:
            replays = await replays_of_message(source, replaying, story)
            story.subscriber = story.subscriber._replace(replays=replays)


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


class ClientPast(NamedTuple):
    """The subscriptions of a client and the end of its last session, at a moment of the log."""

    seen: bool
    """Whether the log has an event of the client up to then."""
    connected: bool
    since: EventEntry | None
    """The event since which it is connected or offline; None: not in the log."""
    filters: Mapping[str, int]
    """Its subscriptions, also those of a session that has ended, with their QoS."""
    ended: tuple[Position, int, str, bool] | None
    """The end of its last session: position, time, reason, and whether its connection ended
    then; None: the session has not ended."""

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


async def client_past(source: LogSource, client: str, end: LogPoint) -> ClientPast:
    """Return what a log records of a client up to a point; raises as ``LogSource.records``."""
    return await asked_of(source, lambda log: _client_past(log, client, end))


async def _client_past(source: LogSource, client: str, end: LogPoint) -> ClientPast:
    sessions = IndexedSessions(source)
    state = await sessions.at(client, end)
    entry = await _last_end(source, client, end)
    if entry is None:
        seen = state is not None or await _is_seen(source, client, end)
    elif source.index.empty or await sessions.covers(entry.at):
        seen = True
    else:
        raise BadIndex("the index does not cover the session")
    ended = None
    covered = await sessions.covers(position(end.sequence, end.index))
    if state is None and covered and entry is not None:
        event = entry.event
        if isinstance(event, (SessionClosed, SessionExpired)):
            ended = entry.at, entry.time_ms, event.reason, isinstance(event, SessionClosed)
            state, _ = await sessions.before(client, entry.at)
    return ClientPast(
        seen,
        ended is None and state is not None and state.connected,
        entry,
        {held.filter: held.qos for held in state.active()} if state is not None else {},
        ended,
    )


async def _last_end(source: LogSource, client: str, end: LogPoint) -> EventEntry | None:
    """Return the last event up to a point with which a client's session or connection changed."""
    ends = EventFilter((SessionOpened, SessionClosed, SessionExpired), client)
    reader, count = EventReader(source, ends), 1
    while True:
        turns = TurnAssembler(anywhere=True)
        entries = await reader.latest(count, end, turns, ended=True)
        effective = [entry for entry in entries if not entry.void]
        if effective or len(entries) < count:
            return effective[-1] if effective else None
        count *= 2


async def _is_seen(source: LogSource, client: str, end: LogPoint) -> bool:
    """Return whether the log has an event of a client up to a point."""
    reader = EventReader(source, EventFilter((), client))
    return bool(await reader.latest(1, end, TurnAssembler(anywhere=True), ended=True))


async def _unread_drops(
    source: LogSource, story: MessageStory, subscriber: SubscriberState, client: str
) -> UnreadDrops | None:
    """Return the drops for a session that did not read, when a message took effect."""
    sequence = sequence_of(story.effective_at)
    (record,) = (part for part in await source.some([sequence]) if part.sequence == sequence)
    until = record.time_ms + _STEPS_MS
    topic = story.topic or ""
    drops: list[tuple[Record, int, MessageDropped]] = []
    messages = alike = 0
    """Number of messages for the session in the turn, and of those on the topic."""
    until_record = sequence
    async for part in source.records(sequence - record.part, source.last):
        drops += _unread_in(part, client, topic)
        for _, event in part.events():
            topics = _topics_of(event)
            alike += topics.count(topic)
            messages += entries(event) if isinstance(event, Released) else 0
            messages += sum(_is_matched(name, subscriber) for name in topics)
        until_record = part.sequence
        if part.last:
            break
    single = all(len(event.topics) == 1 for _, _, event in drops)
    if not (drops and messages) and until_record < source.last:
        # A message to many receivers is sent in steps, in later turns.
        messages = alike = 0
        turns = TurnAssembler()
        async for record in source.records(until_record + 1, source.last):
            if record.time_ms > until:
                break
            for part in turns.take(record)[1]:
                drops += _unread_in(part, client, topic)
    if not drops:
        return None
    part, index, _ = drops[-1]
    at, dropped = position(part.sequence, index), sum(event.count for _, _, event in drops)
    limits = await asked_of(source, lambda log: _limits(log, part.sequence))
    return UnreadDrops(at, part.time_ms, dropped, (single and alike) or messages, limits)


def _unread_in(
    part: Record, client: str, topic: str
) -> Iterator[tuple[Record, int, MessageDropped]]:
    """Yield the drops of a record that may be of a message on a topic, not read by a client."""
    if any(raw["e"] == "MessageDropped" for raw in part.raw_events):
        for index, event in part.events():
            if _is_unread(event, client, topic):
                yield part, index, event


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


def _topics_of(event: Event) -> list[str]:
    """Return the topic of each message that takes effect with an event that names topics."""
    if not isinstance(event, MessagePublished) or (event.qos == 2 and not event.will):
        return []
    return [topic_of(event, offset) for offset in range(event.count)]


def _is_matched(topic: str, subscriber: SubscriberState) -> bool:
    return any(matches(topic_filter, topic) for topic_filter, _ in subscriber.filters)


async def _limits(source: LogSource, end: int) -> Mapping[str, Any] | None:
    """Return the limits that applied at a record; None: not recorded."""
    index, limits = source.index, None
    latest = index.latest_rare("LimitsApplied", min(end, index.last))
    if latest is not None and latest >= source.begin:
        records = [part for part in await source.some([latest]) if part.sequence == latest]
        limits = _last_limits(records[0])
    if index.last < end:
        async for record in source.records(index.last + 1, end):
            limits = _last_limits(record) or limits
    return limits


def _last_limits(record: Record) -> Mapping[str, Any] | None:
    if not any(raw["e"] == "LimitsApplied" for raw in record.raw_events):
        return None
    return [event.limits for _, event in record.events() if isinstance(event, LimitsApplied)][-1]


async def replays_of(source: LogSource, client: str) -> SessionState | None:
    """Return the session of a client at the end of a log if it has replays; else None.

    Raises as ``LogSource.records``.
    """
    end = LogPoint(source.last)
    state = await asked_of(source, lambda indexed: IndexedSessions(indexed).at(client, end))
    return state if state is not None and state.replays else None


async def replays_of_message(
    source: LogSource, state: SessionState, story: MessageStory, log: str = ""
) -> list[ReplayPast]:
    """Return what each replay did with a message that matches.

    ``log`` is that of the message, if it is not the one of the session. A replay reads a message
    where it was published, not a copy. Raises as ``LogSource.records``.
    """
    replays: list[ReplayPast] = []
    if (story.session or "").startswith(LOG_SESSION):
        return replays
    for name, held in state.replays.items():
        replay = held.replay
        if replay is None or not matches(replay.topic_filter, story.topic or ""):
            continue
        reason = _never(replay, story, log)
        through = replay.through.get(log, -1)
        mark = None
        if not reason and through >= story.effective_at:
            mark = await _read_mark(source, state.session, name, story, log)
        replays.append(ReplayPast(name, through, replay.state, reason, mark))
    return replays


def _never(replay: ReplayState, story: MessageStory, log: str) -> str:
    """Return why a replay does not read a message; empty: it reads it."""
    at, time_ms = story.effective_at, story.time_ms or 0
    start, until = replay.start.get(log), replay.until.get(log)
    if start is not None and at <= start:
        return "last" if replay.last else "before"
    if start is None and story.time_ms is not None and time_ms < replay.start_ms:
        return "before"
    if until is not None and at > until:
        return "after"
    return "after" if 0 < replay.until_ms < time_ms else ""


async def _read_mark(
    source: LogSource, client: str, topic_filter: str, story: MessageStory, log: str
) -> ReadMark | None:
    """Return the step in which a replay passed a message; None: the log does not show it."""
    first = 0 if log else sequence_of(story.effective_at)
    async for entry in effective_entries(source, EventFilter((ReplayReached,), client), first):
        event = entry.event
        if not isinstance(event, ReplayReached) or event.filter != topic_filter:
            continue
        if event.through.get(log, -1) >= story.effective_at:
            gap = event.gap.get(log)
            unread = bool(gap) and gap is not None and gap[0] <= story.effective_at <= gap[-1]
            return ReadMark(entry.at, entry.time_ms, event.sent, event.left_out, unread)
    return None
