"""Messages that one log of a node took from another: their positions in both."""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from eventstore.format.events import LOG_SESSION, MessagePublished
from eventstore.format.positions import Position, from_runs, index_of, sequence_of
from eventstore.reading.log_points import LogPoint
from projections.past.event_reader import EventFilter, effective_entries
from projections.past.message_story import topic_of
from projections.past.topic_lookup import topic_matcher

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource


class OriginPlace(NamedTuple):
    """The place in another log where a message was published that this log took."""

    log: str
    """Name of the other log."""
    ref: Position
    """Position in that log."""


async def origin_of(source: LogSource, ref: Position) -> OriginPlace | None:
    """Return where a message was taken from; None if a client of this log published it.

    Also None if its record was cut off. Raises CorruptLog or CutMeanwhile.
    """
    return (await origins_of(source, [ref])).get(ref)


async def origins_of(source: LogSource, refs: Iterable[Position]) -> dict[Position, OriginPlace]:
    """Return for the messages that were taken from another log where they come from."""
    by_record: dict[int, list[Position]] = {}
    for ref in refs:
        if source.first <= sequence_of(ref) <= source.last:
            by_record.setdefault(sequence_of(ref), []).append(ref)
    places: dict[Position, OriginPlace] = {}
    if not by_record:
        return places
    for record in await source.some(sorted(by_record)):
        for index, event in record.events() if record.sequence in by_record else ():
            if not isinstance(event, MessagePublished) or not event.origins:
                continue
            log = event.session.removeprefix(LOG_SESSION)
            origins = from_runs(list(event.origins))
            for ref in by_record[record.sequence]:
                offset = index_of(ref) - index
                if 0 <= offset < event.count:
                    places[ref] = OriginPlace(log, origins[offset])
    return places


async def taken_from(
    source: LogSource, log: str, refs: Collection[Position]
) -> dict[Position, list[Position]]:
    """Return the positions at which a log has messages of ``log``, by their positions there.

    It has several copies of a message if shared subscriptions got it. Raises as
    ``LogSource.records``.
    """
    searched = set(refs)
    taken_at: dict[Position, list[Position]] = {}
    if not searched:
        return taken_at
    copies = EventFilter((MessagePublished,), LOG_SESSION + log)
    async for entry in effective_entries(source, copies):
        if isinstance(entry.event, MessagePublished):
            for number, ref in enumerate(from_runs(list(entry.event.origins))):
                if ref in searched:
                    taken_at.setdefault(ref, []).append(entry.at + number)
    return taken_at


async def published_here(
    source: LogSource, topic_filter: str, count: int, until: LogPoint
) -> Sequence[Position]:
    """Return the positions of the last messages that clients of this log published on topics.

    Messages after ``until`` are left out. Raises as ``LogSource.records``.
    """
    refs: deque[Position] = deque(maxlen=count)
    matches = topic_matcher(topic_filter)
    selected = EventFilter((MessagePublished,), topic=topic_filter)
    async for entry in effective_entries(source, selected, end=until):
        event = entry.event
        if isinstance(event, MessagePublished) and not event.session.startswith(LOG_SESSION):
            refs.extend(
                entry.at + number
                for number in range(event.count)
                if matches(topic_of(event, number))
            )
    return refs
