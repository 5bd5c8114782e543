"""The events of a log, selected by type, session and topic, including those of void turns."""

from __future__ import annotations

import contextlib
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from eventstore.format.erasure_events import ErasureRequested, TopicsKeyed
from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import (
    Assigned,
    Delivered,
    Expired,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Queued,
    Redelivered,
    Released,
    RetainedExpired,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    WillArmed,
    WillCancelled,
)
from eventstore.format.node_events import MessagesCarried, RetainedCleared, RetainedSnapshot
from eventstore.format.positions import INDEX_BITS, Position, from_runs, position
from eventstore.format.records import Record
from eventstore.format.sealing import SealedArea
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.indexed_reading import read_listed
from eventstore.reading.keys import LIFECYCLE, SESSION
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_points import LogPoint
from eventstore.reading.progress import Progress, silent
from eventstore.reading.segment import BadIndex
from eventstore.reasons import close_text, expiry_text
from projections.past.topic_lookup import MessageTopics, topic_matcher
from projections.past.topic_records import TopicRecords

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

EVENT_TYPES: Final[dict[str, type]] = {
    kind.__name__.casefold(): kind
    for kind in sorted(get_args(Event), key=lambda kind: kind.__name__)
}
"""The types of events by name, in lower case."""


_LOOK_BACK: Final = 8
"""Records to read first for the last events; each further step reads twice as many."""

_LIFECYCLE: Final = frozenset({SessionOpened, SessionClosed, SessionExpired, Redelivered})
"""The events for which the index has separate lists of records."""


class EventEntry(NamedTuple):
    """An event and its position."""

    at: Position
    time_ms: int
    event: Event
    area: memoryview | SealedArea
    """The payload area of its record."""
    void: bool
    """Whether it belongs to a turn that was never complete: it did not take effect."""
    cause: str = ""
    """Why it happened, for the end of a sentence, if only later events show it."""
    jumped_ms: int = 0
    """Sum of the jumps of the clock up to its record."""
    record: Record | None = None
    """Its record, where a reader returned it."""


class EventFilter:
    """Selects events by type, session and topic; None and empty values select all."""

    def __init__(
        self,
        types: tuple[type, ...] = (),
        session: str | None = None,
        topic: str | None = None,
        *,
        most_named: int | None = None,
    ) -> None:
        """``topic`` is a topic filter; raises TopicError if it is not valid.

        ``most_named`` limits the records that are read before the first one is yielded.
        """
        self._most_named = most_named
        self._types = types
        self._session = session
        self._topic = topic
        self._matches = topic_matcher(topic) if topic is not None else None
        self._named: TopicRecords | None = None
        self._own: list[int] | None = None
        """The indexed records with an event of the session."""

    @property
    def needs_topics(self) -> bool:
        """Whether the selection needs topics of messages that events name by position only."""
        return self._matches is not None

    async def records(self, source: LogSource, first: int, last: int) -> AsyncIterator[Record]:
        """Yield the records between two sequences that may contain a selected event.

        With an index of the log these are few. Raises as ``LogSource.records``.
        """
        index = source.index
        if self._session is None and self._topic is None:
            records = source.records(first, last)
        else:
            if self._session is None:
                with contextlib.suppress(BadIndex):  # then the log is read without the index
                    topics, end = self._topics_in(index), min(last, index.last)
                    await topics.narrow(source, first, end, self._most_named)
            records = read_listed(source, lambda log: self._listed(log, first, last), first, last)
        async for record in records:
            yield record

    def _topics_in(self, index: LogIndex) -> TopicRecords:
        """Return the records of the topic filter; raises BadIndex."""
        if self._named is None:
            if self._topic is None or self._matches is None:
                raise ValueError("no topic is selected")
            self._named = TopicRecords(index, self._topic, self._matches)
        return self._named

    def begin_of_block(self, source: LogSource, first: int, last: int, count: int) -> int:
        """Return the record from which about ``count`` records up to ``last`` have to be read.

        It is not before ``first``. With an index of the log, only records that may contain a
        selected event count, and those after the index are a separate block.
        """
        index, begin = source.index, max(first, last - count + 1)
        if self._session is None and self._topic is None:
            return begin
        if last > index.last:
            return max(begin, index.last + 1)
        if last >= index.first:
            with contextlib.suppress(BadIndex):  # then the log is read without the index
                listed = self._listed(index, max(first, index.first), last)
                return listed[-count] if len(listed) >= count else max(first, index.first)
        return begin

    def _listed(self, index: LogIndex, first: int, last: int) -> list[int]:
        if self._session is not None and self._own is None:
            own = self._types and _LIFECYCLE.issuperset(self._types)
            self._own = index.sequences((LIFECYCLE if own else SESSION) + self._session)
        concerning = None
        if self._topic is not None:
            concerning = self._topics_in(index).concerning(min(last, index.last))
        if self._own is None:
            return sorted(number for number in concerning or () if first <= number <= last)
        listed = self._own[bisect_left(self._own, first) : bisect_right(self._own, last)]
        return (
            listed if concerning is None else [number for number in listed if number in concerning]
        )

    def may_select(self, record: Record) -> bool:
        """Return whether a record has an event of the session, without parsing its events."""
        session = self._session
        return session is None or any(raw.get("session") == session for raw in record.raw_events)

    async def selects(self, event: Event, topics: MessageTopics) -> bool:
        """Return whether an event is selected; may read the log for the topics it concerns."""
        if self._types and type(event) not in self._types:
            return False
        if self._session is not None and getattr(event, "session", None) != self._session:
            return False
        if self._matches is None:
            return True
        refs = refs_of(event)
        named = self._named
        if named is not None:
            refs = [ref for ref in refs if named.may_name(ref >> INDEX_BITS)]
        await topics.load(refs)
        return any(map(self._matches, _topics(event, refs, topics)))


_WITH_TOPICS = (
    MessageDropped,
    MessagePublished,
    MessagesCarried,
    RetainedCleared,
    RetainedExpired,
    RetainedSnapshot,
    TopicsKeyed,
    ErasureRequested,
)
_WITH_REFS = (
    Assigned, Delivered, Expired, InboundReplaced, MessageDropped, Queued, Released, Returned,
)  # fmt: skip


def _topics(event: Event, refs: list[Position], topics: MessageTopics) -> Iterator[str]:
    """Yield the topics that an event concerns."""
    if isinstance(event, _WITH_TOPICS):
        yield from event.topics
    elif isinstance(event, WillArmed):
        yield event.topic
    for ref in refs:
        message = topics.get(ref)
        if message is not None:
            yield message.topic


def refs_of(event: Event) -> list[Position]:
    """Return the positions of the messages that an event concerns."""
    if isinstance(event, _WITH_REFS):
        return from_runs(event.refs)
    return []


def cause_of(events: Sequence[tuple[int, Event]], number: int) -> str:
    """Return why a will was discarded, from the events of its record; empty: not known.

    ``number`` is the index of the event among them. For other events the result is empty.
    """
    event = events[number][1]
    if isinstance(event, WillCancelled):
        for _, later in events[number + 1 :]:
            if getattr(later, "session", None) != event.session:
                continue
            if isinstance(later, (SessionOpened, SessionTakenOver)):
                return "the client connected again before it was published"
            if isinstance(later, SessionClosed):
                return close_text(later.reason)
            if isinstance(later, SessionExpired):
                return expiry_text(later.reason)
    return ""


async def parts_left(
    source: LogSource, turns: TurnAssembler, last: int
) -> list[tuple[Record, bool]]:
    """Return the parts of a turn that continues after a record, and whether they are void."""
    parts = list(turns.rest())
    for sequence in range(last + 1, source.last + 1) if parts else ():
        (record,) = await source.some([sequence])
        if record.part == 0:
            break
        if record.last:
            return [(part, False) for part in parts]
    return [(part, True) for part in parts]


class EventReader:
    """Reads the events of a log that a filter selects."""

    def __init__(
        self,
        source: LogSource,
        selected: EventFilter,
        progress: Progress = silent,
        topics: MessageTopics | None = None,
    ) -> None:
        self.source = source
        self.topics = topics or MessageTopics(
            source, thorough=selected.needs_topics, progress=progress
        )
        self._selected = selected

    async def entries(
        self,
        start: LogPoint,
        end: LogPoint,
        turns: TurnAssembler,
        *,
        ended: bool,
        follows: bool = False,
    ) -> AsyncGenerator[EventEntry, None]:
        """Yield the selected events between two points.

        ``turns`` contains the parts of an incomplete turn; ``ended``: nothing follows the last
        record, so that such a turn is void; ``follows``: the next call goes on with ``turns``.
        Raises CorruptLog, UnreadableEvent or CutMeanwhile.
        """
        if start.sequence <= end.sequence:
            async for record in self._selected.records(self.source, start.sequence, end.sequence):
                incomplete, complete = turns.take(record)
                for part in incomplete:
                    async for entry in self.selected(part, start, end, void=True):
                        yield entry
                for part in complete:
                    async for entry in self.selected(part, start, end, void=False):
                        yield entry
        parts = [] if follows else await parts_left(self.source, turns, end.sequence)
        for part, void in parts:
            if ended or not void:
                async for entry in self.selected(part, start, end, void=void):
                    yield entry

    async def latest(
        self, count: int, end: LogPoint, turns: TurnAssembler, *, ended: bool, begin: int = 0
    ) -> list[EventEntry]:
        """Return the last selected events up to a point, reading backwards until they are found.

        ``turns`` gets the parts of an incomplete turn; no record before ``begin`` is read.
        Otherwise as :meth:`entries`.
        """
        source, chosen = self.source, list[EventEntry]()
        until, block = end, _LOOK_BACK
        begin = max(begin, source.begin)
        while until.sequence >= begin and len(chosen) < count:
            first = self._selected.begin_of_block(source, begin, until.sequence, block)
            start, newest = LogPoint(first, 0), until is end
            own = turns if newest else TurnAssembler(anywhere=True)
            entries: deque[EventEntry] = deque(maxlen=count - len(chosen))
            async for entry in self.entries(start, until, own, ended=ended or not newest):
                entries.append(entry)
            chosen[:0] = entries
            until, block = LogPoint(first - 1), 2 * block
        return chosen

    async def selected(
        self, record: Record, start: LogPoint, end: LogPoint, *, void: bool
    ) -> AsyncIterator[EventEntry]:
        """Yield the selected events of a record between two points; ``void`` says what it is."""
        base = position(record.sequence, 0)
        if not self._selected.may_select(record):
            return
        events = list(record.events())
        self.topics.note(base, events)
        for number, (index, event) in enumerate(events):
            if record.sequence == start.sequence and index + entries(event) <= start.index:
                continue
            if record.sequence == end.sequence and index > end.index:
                return
            if await self._selected.selects(event, self.topics):
                cause = cause_of(events, number)
                jumped = record.jumps.total_ms
                yield EventEntry(
                    base + index, record.time_ms, event, record.area, void, cause, jumped, record
                )


async def effective_entries(
    source: LogSource, selected: EventFilter, first: int = 0, end: LogPoint | None = None
) -> AsyncIterator[EventEntry]:
    """Yield the selected events that took effect, from a record on, up to a point or the end.

    Raises as :meth:`EventReader.entries`.
    """
    start, turns = LogPoint(max(first, source.begin), 0), TurnAssembler(anywhere=True)
    reader = EventReader(source, selected)
    async for entry in reader.entries(start, end or LogPoint(source.last), turns, ended=True):
        if not entry.void:
            yield entry
