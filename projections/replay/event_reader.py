"""The events of a log, selected by type, session and topic, including those of void turns."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Final, NamedTuple, get_args

from eventstore.format import (
    INDEX_BITS,
    Assigned,
    Delivered,
    Event,
    Expired,
    MessageDropped,
    MessagePublished,
    MessagesCarried,
    Position,
    Queued,
    Redelivered,
    Released,
    RetainedCleared,
    RetainedExpired,
    RetainedSnapshot,
    Returned,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    WillArmed,
    entries,
    from_runs,
    position,
)
from eventstore.index import LIFECYCLE, SESSION, BadIndex
from eventstore.reading import Progress, read_listed, silent
from projections.indexing import TopicRecords
from projections.replay.topic_lookup import TopicBook, topic_matcher

if TYPE_CHECKING:
    from collections.abc import AsyncGenerator, AsyncIterator, Iterator

    from eventstore.format import Record, TurnAssembler
    from eventstore.index import LogIndex
    from eventstore.reading import LogPoint, LogSource

EVENT_TYPES: Final[dict[str, type]] = {kind.__name__.casefold(): kind for kind in get_args(Event)}
"""The types of events by name, in lower case."""


_LIFECYCLE: Final = frozenset({SessionOpened, SessionClosed, SessionExpired, Redelivered})
"""The events for which the index has separate lists of records."""


class EventEntry(NamedTuple):
    """An event and its position."""

    at: Position
    time_ms: int
    event: Event
    area: memoryview
    """The payload area of its record."""
    void: bool
    """Whether it belongs to a turn that was never complete: it did not take effect."""


class EventFilter:
    """Selects events by type, session and topic; None and empty values select all."""

    def __init__(
        self, types: tuple[type, ...] = (), session: str | None = None, topic: str | None = None
    ) -> None:
        """``topic`` is a topic filter; raises TopicError if it is not valid."""
        self._types = types
        self._session = session
        self._topic = topic
        self._matches = topic_matcher(topic) if topic is not None else None
        self._named: TopicRecords | None = None

    @property
    def needs_topics(self) -> bool:
        """Whether the selection needs topics of messages that events name by position only."""
        return self._matches is not None

    async def records(self, source: LogSource, first: int, last: int) -> AsyncIterator[Record]:
        """Yield the records between two sequences that may contain a selected event.

        With an index of the log these are few. Raises as ``LogSource.records``.
        """
        index = source.index
        if index is None or (self._session is None and self._topic is None):
            found = source.records(first, last)
        else:
            if self._session is None:
                with contextlib.suppress(BadIndex):  # then the log is read as without an index
                    await self._topics_in(index).narrow(source, first, min(last, index.last))
            found = read_listed(source, lambda one: self._listed(one, first, last), first, last)
        async for record in found:
            yield record

    def _topics_in(self, index: LogIndex) -> TopicRecords:
        """Return the records of the topic filter; raises BadIndex."""
        if self._named is None:
            if self._topic is None or self._matches is None:
                raise ValueError("no topic is selected")
            self._named = TopicRecords(index, self._topic, self._matches)
        return self._named

    def _listed(self, index: LogIndex, first: int, last: int) -> list[int]:
        found: list[set[int]] = []
        if self._session is not None:
            own = self._types and _LIFECYCLE.issuperset(self._types)
            kind = LIFECYCLE if own else SESSION
            found.append({*index.sequences(kind + self._session, first, last)})
        if self._topic is not None:
            found.append(self._topics_in(index).concerning(min(last, index.last)))
        return sorted(found[0].intersection(*found[1:]))

    async def selects(self, event: Event, topics: TopicBook) -> bool:
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
)
_WITH_REFS = (Assigned, Delivered, Expired, MessageDropped, Queued, Released, Returned)


def _topics(event: Event, refs: list[Position], topics: TopicBook) -> Iterator[str]:
    """Yield the topics that an event concerns."""
    if isinstance(event, _WITH_TOPICS):
        yield from event.topics
    elif isinstance(event, WillArmed):
        yield event.topic
    for ref in refs:
        known = topics.get(ref)
        if known is not None:
            yield known.topic


def refs_of(event: Event) -> list[Position]:
    """Return the positions of the messages that an event concerns."""
    if isinstance(event, _WITH_REFS):
        return from_runs(event.refs)
    return []


class EventReader:
    """Reads the events of a log that a filter selects."""

    def __init__(
        self, source: LogSource, selected: EventFilter, progress: Progress = silent
    ) -> None:
        self.source = source
        self.topics = TopicBook(source, thorough=selected.needs_topics, progress=progress)
        self._selected = selected

    async def entries(
        self, start: LogPoint, end: LogPoint, turns: TurnAssembler, *, ended: bool
    ) -> AsyncGenerator[EventEntry, None]:
        """Yield the selected events between two points.

        ``turns`` contains the parts of an incomplete turn; ``ended`` says that nothing follows the
        end, so that such a turn is void. Raises CorruptLog, UnreadableEvent or CutMeanwhile.
        """
        if start.sequence <= end.sequence:
            async for record in self._selected.records(self.source, start.sequence, end.sequence):
                void, complete = turns.take(record)
                for part in void:
                    async for entry in self._of(part, start, end, void=True):
                        yield entry
                for part in complete:
                    async for entry in self._of(part, start, end, void=False):
                        yield entry
        for part in turns.rest() if ended else ():
            async for entry in self._of(part, start, end, void=True):
                yield entry

    async def _of(
        self, record: Record, start: LogPoint, end: LogPoint, *, void: bool
    ) -> AsyncIterator[EventEntry]:
        base = position(record.sequence, 0)
        events = list(record.events())
        self.topics.note(base, events)
        for index, event in events:
            if record.sequence == start.sequence and index + entries(event) <= start.index:
                continue
            if record.sequence == end.sequence and index > end.index:
                return
            if await self._selected.selects(event, self.topics):
                yield EventEntry(base + index, record.time_ms, event, record.payload, void)
