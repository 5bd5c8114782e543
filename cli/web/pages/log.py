"""A page of the event log: what is wanted, from one place on, forwards or backwards.

A page takes bounded time: a filter may match one event in millions. What was found until then is
shown, with where the search goes on.
"""

import asyncio
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from cli.history import Selection
from cli.logsource import cut_off, point_at, start_at
from cli.web.pages.session_at import of_few_records
from eventstore.errors import CutOff
from eventstore.format import (
    MAX_INDEX,
    Position,
    Record,
    TurnAssembler,
    entries,
    index_of,
    position,
    sequence_of,
)
from eventstore.reading import LogPoint, LogSource
from projections.replay import EventEntry, EventFilter, TopicBook, payload_words, refs_of, words

SECONDS = 3.0
"""How long a page may take."""
_SLICE = 0.02
_LOOK_BACK = 32
"""Records that are read first when the last events are wanted; each further look takes 4 times
as many, up to a bound, or as many as can be read in ``_BLOCK_SECONDS``."""
_LOOK_MOST = 4096
_BLOCK_SECONDS = 0.4
_NO_AREA = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Row:
    """An event as the page shows it."""

    at: Position
    time_ms: int
    kind: str
    session: str | None
    said: str
    payload: str
    void: bool
    """Its turn never was complete: it did not happen."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """What was found."""

    rows: list[Row]
    next: Position | None
    """Where the next page begins, itself not included; None: this is all."""
    timed_out: bool
    """There was no time to find more."""
    looked: tuple[int, int]
    """The first and the last record that were looked into; (0, 0): none."""
    beginning: str | None = None
    """Says that a part of what was asked for was cut off."""
    end: str | None = None
    """Says that all of what was asked for would come behind the end."""


class _Budget:
    """Time for one page."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._end = clock() + seconds
        self._slice = clock() + _SLICE

    async def spend(self) -> bool:
        """Yield to other tasks; return whether there is time left."""
        now = self._clock()
        if now > self._slice:
            await asyncio.sleep(0)
            self._slice = self._clock() + _SLICE
        return now < self._end


async def find_page(
    source: LogSource,
    wanted: Selection,
    count: int,
    after: Position | None,
    *,
    backwards: bool,
    payload: bool,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> LogPage:
    """Return the next ``count`` events that are wanted, behind (backwards: before) a position.

    To begin behind the end is no error: the broker tells of what is being written just now.
    Raises UsageError when a position up to which is asked lies there, CutOff when nothing is left
    of what was asked for, CorruptLog and CutMeanwhile.
    """
    if await cut_off(source, wanted.end):
        raise CutOff(f"nothing is left of that: {source.beginning()}")
    beginning = source.beginning() if await cut_off(source, wanted.start) else None
    end = await point_at(source, wanted.end)
    if wanted.start is not None and (wanted.start.position or 0) >= position(source.last + 1, 0):
        said = f"nothing is there yet: the last record of the log is {source.last:,}"
        return LogPage([], None, False, (0, 0), beginning, said)
    start = await start_at(source, wanted.start)
    if after is not None and backwards:
        end = min(end, _before(after), key=_place)
    elif after is not None:
        start = max(start, _behind(after), key=_place)
    search = _Search(source, wanted, count, _Budget(seconds, clock), payload=payload)
    if start.sequence > end.sequence:
        return LogPage([], None, False, (0, 0), beginning)
    found = search.backwards(start, end) if backwards else search.forwards(start, end)
    rows, following, timed_out = await found
    return LogPage(rows, following, timed_out, search.looked, beginning)


def _place(cut: LogPoint) -> tuple[int, int]:
    return cut.sequence, cut.index


def _before(at: Position) -> LogPoint:
    """Return up to where the log is read to end before a position."""
    if index_of(at):
        return LogPoint(sequence_of(at), index_of(at) - 1)
    return LogPoint(sequence_of(at) - 1)


def _behind(at: Position) -> LogPoint:
    """Return from where the log is read to begin behind a position."""
    if index_of(at) == MAX_INDEX:
        return LogPoint(sequence_of(at) + 1, 0)
    return LogPoint(sequence_of(at), index_of(at) + 1)


class _FoundEvents(NamedTuple):
    """An event that is wanted."""

    entry: EventEntry
    payload: str


class _Search:
    """Looks for the events of one page."""

    def __init__(
        self, source: LogSource, wanted: Selection, count: int, budget: _Budget, *, payload: bool
    ) -> None:
        self.looked = (0, 0)
        self._source = source
        self._selected = EventFilter(wanted.types, wanted.session, wanted.topic)
        self._session = wanted.session
        self._topics = TopicBook(source)
        self._count = count
        self._budget = budget
        self._payload = payload

    async def forwards(
        self, start: LogPoint, end: LogPoint
    ) -> tuple[list[Row], Position | None, bool]:
        """Return events, the earliest first; where to go on; and whether time was up."""
        rows: list[Row] = []
        turns = TurnAssembler(anywhere=True)
        async for record in self._source.records(start.sequence, end.sequence):
            for part, void in _sorted_out(turns, record):
                for found in await self._chosen(part, start, end, void=void):
                    rows.append(await self._row(found))
                    if len(rows) == self._count:
                        return rows, _end_of(found.entry), False
            self._look(record.sequence)
            going_on = await self._budget.spend() or record.sequence == end.sequence
            if not going_on and not turns.rest():
                return rows, position(record.sequence, MAX_INDEX), True
        for part, void in await self._rest(turns, end.sequence):
            for found in await self._chosen(part, start, end, void=void):
                rows.append(await self._row(found))
                if len(rows) == self._count:
                    return rows, _end_of(found.entry), False
        return rows, None, False

    async def backwards(
        self, start: LogPoint, end: LogPoint
    ) -> tuple[list[Row], Position | None, bool]:
        """Return events, the latest first; where to go on; and whether time was up."""
        rows: list[Row] = []
        block = _LOOK_BACK
        last = end
        while last.sequence >= start.sequence:
            first = max(start.sequence, last.sequence - block + 1)
            begun = time.perf_counter()
            for found in reversed(await self._block(first, last, start)):
                rows.append(await self._row(found))
                if len(rows) == self._count:
                    return rows, found.entry.at, False
            last = LogPoint(first - 1)
            if last.sequence >= start.sequence and not await self._budget.spend():
                return rows, position(first, 0), True
            taken = max(time.perf_counter() - begun, 1e-3)
            block = max(1, min(4 * block, _LOOK_MOST, int(block * _BLOCK_SECONDS / taken)))
        return rows, None, False

    async def _block(self, first: int, last: LogPoint, start: LogPoint) -> list[_FoundEvents]:
        """Return the last events that are wanted of some records, in order."""
        turns = TurnAssembler(anywhere=True)
        found: list[_FoundEvents] = []
        async for record in self._source.records(first, last.sequence):
            self._look(record.sequence)
            for part, void in _sorted_out(turns, record):
                found += await self._chosen(part, start, last, void=void)
            del found[: -self._count]
            await self._budget.spend()
        for part, void in await self._rest(turns, last.sequence):
            found += await self._chosen(part, start, last, void=void)
        return found[-self._count :]

    async def _rest(self, turns: TurnAssembler, last: int) -> list[tuple[Record, bool]]:
        """Return the parts of a turn that goes on behind a record, and whether they are void."""
        rest = list(turns.rest())
        for sequence in range(last + 1, self._source.last + 1) if rest else ():
            (record,) = await self._source.some([sequence])
            if record.part == 0:
                break
            if record.last:
                return [(part, False) for part in rest]
        return [(part, True) for part in rest]

    async def _chosen(
        self, part: Record, start: LogPoint, end: LogPoint, *, void: bool
    ) -> list[_FoundEvents]:
        base = position(part.sequence, 0)
        if self._session is not None and not any(
            raw.get("session") == self._session for raw in part.raw_events
        ):
            return []  # to look at what was written costs a tenth of making events of it
        events = list(part.events())
        self._topics.note(base, events)
        found = []
        for index, event in events:
            if part.sequence == start.sequence and index + entries(event) <= start.index:
                continue
            if part.sequence == end.sequence and index > end.index:
                break
            if await self._selected.selects(event, self._topics):
                payload = payload_words(event, part.payload) if self._payload else ""
                # Without the payload area: it would keep the whole record in memory.
                entry = EventEntry(base + index, part.time_ms, event, _NO_AREA, void)
                found.append(_FoundEvents(entry, payload.removeprefix(": ")))
        return found

    async def _row(self, found: _FoundEvents) -> Row:
        entry = found.entry
        await self._topics.load(of_few_records(refs_of(entry.event)))
        return Row(
            entry.at,
            entry.time_ms,
            entry.event.e,
            getattr(entry.event, "session", None),
            words(entry.event, self._topics),
            found.payload,
            entry.void,
        )

    def _look(self, sequence: int) -> None:
        first, last = self.looked
        self.looked = (min(first or sequence, sequence), max(last, sequence))


def _end_of(entry: EventEntry) -> Position:
    """Return the last position that an event occupies."""
    return entry.at + max(entries(entry.event), 1) - 1


def _sorted_out(turns: TurnAssembler, record: Record) -> Iterator[tuple[Record, bool]]:
    """Yield the parts of turns that are decided with a record, and whether they are void."""
    void, complete = turns.take(record)
    yield from ((part, True) for part in void)
    yield from ((part, False) for part in complete)
