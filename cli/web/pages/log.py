"""A page of the event log: selected events from a position, forwards or backwards.

The time for a page is limited, because a filter may match one event in millions. The page then
shows the events found, and the position where the search continues. The pages of several logs are
merged by the times of the events; within a log the order of the log is kept.
"""

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from cli.commands.log_events import Selection
from cli.logs.point_resolution import cut_off, end_at, parse_point, start_at
from cli.web.pages.session_at import of_few_records
from eventstore.errors import CutOff, UsageError
from eventstore.format.event_parsing import entries
from eventstore.format.positions import (
    MAX_INDEX,
    Position,
    format_position,
    index_of,
    position,
    sequence_of,
)
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.log_points import LogPoint, time_of
from eventstore.reading.log_source import LogSource
from projections.log_proof import statement
from projections.past.event_reader import EventEntry, EventFilter, EventReader, refs_of
from projections.past.event_text import payload_words, words
from projections.past.lost_records import lost_records
from projections.past.topic_lookup import MessageTopics

SECONDS = 3.0
"""Maximum time for a page in seconds."""
_SLICE = 0.02
_LOOK_BACK = 8
"""Records to read first for the last events. Each further step reads twice as many, up to a
limit, or as many as can be read in ``_BLOCK_SECONDS``."""
_LOOK_MAX = 4096
_LOOK_AHEAD = 64
"""Maximum records that are read to find the other records about a topic."""
_BLOCK_SECONDS = 0.4
_NO_AREA = memoryview(b"")


@dataclass(frozen=True, slots=True)
class Row:
    """An event of the page."""

    at: Position
    time_ms: int
    kind: str
    session: str | None
    said: str
    payload: str
    void: bool
    """Its turn was not completed, so it has no effect."""
    end: Position
    """The position of its last entry."""
    log: str = ""
    """The log that it is in, if there are several."""


@dataclass(frozen=True, slots=True)
class LogPage:
    """The events found."""

    rows: list[Row]
    next: Position | None
    """Position after which the next page begins; None: there are no more events."""
    timed_out: bool
    """Whether the time ran out."""
    looked: tuple[int, int]
    """The first and the last record searched; (0, 0): none."""
    beginning: str | None = None
    """A note if a part of the selection was deleted."""
    end: str | None = None
    """A note if the selection is beyond the end of the log."""
    lost: Sequence[str] = ()
    """Notes about records that were lost where the page searched."""


@dataclass(frozen=True, slots=True)
class MergedLogPage:
    """The events found in several logs, or in one."""

    rows: list[Row]
    next: str | None
    """Where the next page begins, for a request; None: there are no more events."""
    timed_out: bool
    """Whether the time ran out in some log."""
    looked: list[tuple[str, int, int]]
    """The logs in which the time ran out, with the first and the last record searched."""
    notes: list[str]
    """What was deleted, lost, or is beyond the end of a log."""
    beyond: bool
    """Whether the selection is beyond the end of each log."""


_FINISHED = "-"
"""Replaces a position: the log has nothing before."""


def split_places(text: str | None, logs: Sequence[str]) -> dict[str, str]:
    """Return where a page begins in each log, from :attr:`MergedLogPage.next`.

    Raises UsageError for other text.
    """
    places = text.split(",") if text else [""] * len(logs)
    if len(places) != len(logs):
        raise UsageError("after must be a position such as 12.3 for each log")
    return dict(zip(logs, places, strict=True))


async def find_in_logs(
    sources: Mapping[str, LogSource],
    selection: Selection,
    count: int,
    after: str | None,
    *,
    backwards: bool,
    payload: bool,
    clock: Callable[[], float] = time.monotonic,
) -> MergedLogPage:
    """Return the next ``count`` selected events of all logs by time, as :func:`find_page`.

    ``after`` is the place where it begins, None: at the beginning.
    """
    places = split_places(after, list(sources))

    async def find(log: str) -> LogPage | None:
        place = places[log]
        if place == _FINISHED:
            return None
        try:
            return await find_page(
                sources[log],
                selection,
                count,
                position_of(place),
                backwards=backwards,
                payload=payload,
                clock=clock,
            )
        except CutOff as error:
            if len(sources) == 1:
                raise
            return LogPage([], None, False, (0, 0), str(error))  # the others may have events

    results = dict(zip(sources, await asyncio.gather(*map(find, sources)), strict=True))
    pages = {log: page for log, page in results.items() if page is not None}
    limits = {
        log: await time_of(sources[log], sequence_of(page.next))
        for log, page in pages.items()
        if page.timed_out and page.next is not None
    }
    rows, counts = merge_rows(pages, count, limits, backwards=backwards)
    following = dict(places)
    for log, page in pages.items():
        following[log] = _next_place(page, counts[log], places[log], backwards=backwards)
    more = any(page.next is not None or counts[log] < len(page.rows) for log, page in pages.items())
    label = len(sources) > 1
    notes = [
        f"log {log}: {note}" if label else note
        for log, page in pages.items()
        for note in (page.beginning, page.end, *page.lost)
        if note is not None
    ]
    return MergedLogPage(
        rows,
        ",".join(following.values()) if more else None,
        bool(limits),
        [(log, *pages[log].looked) for log in limits],
        notes,
        all(page.end is not None for page in pages.values()),
    )


def merge_rows(
    pages: Mapping[str, LogPage], count: int, limits: Mapping[str, int], *, backwards: bool
) -> tuple[list[Row], dict[str, int]]:
    """Return the first ``count`` rows of all logs by time, and how many of each log these are.

    ``limits`` are the times that the search has reached in logs where the time for it ran out: rows
    of other logs that are beyond it have to wait.
    """
    sign = -1 if backwards else 1
    counts = dict.fromkeys(pages, 0)
    rows: list[Row] = []
    while len(rows) < count:
        heads = [
            (sign * page.rows[counts[log]].time_ms, log)
            for log, page in pages.items()
            if counts[log] < len(page.rows)
        ]
        free = [
            head
            for head in heads
            if all(head[0] <= sign * time_ms for log, time_ms in limits.items() if log != head[1])
        ]
        if not free and rows:
            break
        # Clocks that were set back must not keep all rows waiting.
        head = min(free or heads, key=lambda head: head[0], default=None)
        if head is None:
            break
        log = head[1]
        rows.append(replace(pages[log].rows[counts[log]], log=log))
        counts[log] += 1
    return rows, counts


def _next_place(page: LogPage, count: int, place: str, *, backwards: bool) -> str:
    """Return where the next page begins in a log, of whose rows some were taken.

    It does not depend on events that are added to the log meanwhile.
    """
    if count == len(page.rows):
        if page.next is not None:
            return format_position(page.next)
        if backwards:
            return _FINISHED
        searched = page.looked[1]
        return format_position(position(searched, MAX_INDEX)) if searched else place
    if not count:
        return place or (format_position(page.rows[0].end + 1) if backwards else place)
    newest = page.rows[count - 1]
    return format_position(newest.at if backwards else newest.end)


def position_of(text: str | None) -> Position | None:
    """Return a position of a request, None if there is none; raises UsageError."""
    if not text:
        return None
    moment = parse_point(text)
    if moment.position is None:
        raise UsageError("after must be a position such as 12.3")
    return moment.position


class _TimedFilter(EventFilter):
    """Selects the events of one page, from records that are read until its time is over."""

    def __init__(self, selection: Selection, seconds: float, clock: Callable[[], float]) -> None:
        super().__init__(
            selection.types, selection.session, selection.topic, most_named=_LOOK_AHEAD
        )
        self.looked = (0, 0)
        """The first and the last record searched."""
        self.may_stop: Callable[[int], bool] = bool
        """Whether to stop behind a record, by its sequence, when the time is over."""
        self.stopped_at: int | None = None
        """The record behind which reading has stopped."""
        self._clock = clock
        self._end = clock() + seconds
        self._slice = clock() + _SLICE

    async def records(self, source: LogSource, first: int, last: int) -> AsyncIterator[Record]:
        """Yield records as the base does, and let other tasks run."""
        async for record in super().records(source, first, last):
            yield record
            sequence = record.sequence
            earliest, latest = self.looked
            self.looked = (min(earliest or sequence, sequence), max(latest, sequence))
            if not await self.has_time() and self.may_stop(sequence):
                self.stopped_at = sequence
                return

    async def has_time(self) -> bool:
        """Let other tasks run; return whether there is time left."""
        now = self._clock()
        if now > self._slice:
            await asyncio.sleep(0)
            self._slice = self._clock() + _SLICE
        return now < self._end


async def find_page(
    source: LogSource,
    selection: Selection,
    count: int,
    after: Position | None,
    *,
    backwards: bool,
    payload: bool,
    seconds: float = SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> LogPage:
    """Return the next ``count`` selected events after (backwards: before) a position.

    A start beyond the end is no error: the broker reports records that are being written. Raises
    UsageError if the end of the selection is beyond the end, CutOff if all of it was deleted,
    CorruptLog and CutMeanwhile.
    """
    if await cut_off(source, selection.end):
        raise CutOff(f"these records were deleted: {source.beginning()}")
    beginning = source.beginning() if await cut_off(source, selection.start) else None
    end = await end_at(source, selection.end)
    if selection.start is not None and (selection.start.position or 0) >= position(
        source.last + 1, 0
    ):
        note = f"no events yet: the last record of the log is {source.last:,}"
        return LogPage([], None, False, (0, 0), beginning, note)
    start = await start_at(source, selection.start)
    if after is not None and backwards:
        end = min(end, _point(after - 1), key=_place)
    elif after is not None:
        start = max(start, _point(after + 1), key=_place)
    selected = _TimedFilter(selection, seconds, clock)
    search = _Search(source, selected, count, payload=payload)
    if start.sequence > end.sequence:
        return LogPage([], None, False, (0, 0), beginning)
    search_result = search.backwards(start, end) if backwards else search.forwards(start, end)
    rows, following, timed_out = await search_result
    lost = []
    if selection.types or selection.session is not None or selection.topic is not None:
        # The events about it are not selected.
        reached = None if following is None else sequence_of(following)
        first, last_record = start.sequence, end.sequence
        first, last_record = (
            (reached or first, last_record) if backwards else (first, reached or last_record)
        )
        lost = [statement(doubt) for doubt in await lost_records(source, last_record, first)]
    return LogPage(rows, following, timed_out, selected.looked, beginning, lost=lost)


def _place(point: LogPoint) -> Position:
    return position(point.sequence, point.index)


def _point(at: Position) -> LogPoint:
    return LogPoint(sequence_of(at), index_of(at))


class _FoundEvent(NamedTuple):
    """A selected event, without its record, which may be large."""

    entry: EventEntry
    payload: str


_Rows: TypeAlias = tuple[list[Row], Position | None, bool]
"""Rows, the position to continue (None: there are no more), and whether the time ran out."""


class _Search:
    """Searches for the events of one page."""

    def __init__(
        self, source: LogSource, selected: _TimedFilter, count: int, *, payload: bool
    ) -> None:
        self._source = source
        self._selected = selected
        self._topics = MessageTopics(source)
        self._reader = EventReader(source, selected, topics=self._topics)
        self._count = count
        self._payload = payload

    async def forwards(self, start: LogPoint, end: LogPoint) -> _Rows:
        """Return events, earliest first."""
        rows: list[Row] = []
        turns = TurnAssembler(anywhere=True)
        self._selected.may_stop = lambda sequence: sequence < end.sequence and not turns.rest()
        async with contextlib.aclosing(self._found(start, end, turns)) as events:
            async for event in events:
                rows.append(await self._row(event))
                if len(rows) == self._count:
                    return rows, _end_of(event.entry), False
        if self._selected.stopped_at is not None:
            return rows, position(self._selected.stopped_at, MAX_INDEX), True
        return rows, None, False

    async def backwards(self, start: LogPoint, end: LogPoint) -> _Rows:
        """Return events, latest first."""
        rows: list[Row] = []
        block = _LOOK_BACK
        block_end = end
        while block_end.sequence >= start.sequence:
            first = self._selected.begin_of_block(
                self._source, start.sequence, block_end.sequence, block
            )
            begun = time.perf_counter()
            turns, newest = TurnAssembler(anywhere=True), block_end == end
            # The first block is read whole, however long it takes.
            self._selected.may_stop = (lambda _: False) if newest else (lambda _: True)
            events = self._found(max(start, LogPoint(first, 0), key=_place), block_end, turns)
            chosen = deque([event async for event in events], maxlen=self._count)
            if self._selected.stopped_at is not None:
                return rows, position(block_end.sequence + 1, 0), True
            for event in reversed(chosen):
                rows.append(await self._row(event))
                if len(rows) == self._count:
                    return rows, event.entry.at, False
            block_end = LogPoint(first - 1)
            if block_end.sequence >= start.sequence and not await self._selected.has_time():
                return rows, position(first, 0), True
            seconds = max(time.perf_counter() - begun, 1e-3)
            block = max(1, min(2 * block, _LOOK_MAX, int(block * _BLOCK_SECONDS / seconds)))
        return rows, None, False

    async def _found(
        self, start: LogPoint, end: LogPoint, turns: TurnAssembler
    ) -> AsyncGenerator[_FoundEvent, None]:
        """Yield the selected events between two points until the time is over."""
        async for entry in self._reader.entries(start, end, turns, ended=True):
            yield self._kept(entry)

    def _kept(self, entry: EventEntry) -> _FoundEvent:
        payload = payload_words(entry.event, entry.area) if self._payload else ""
        return _FoundEvent(entry._replace(area=_NO_AREA, record=None), payload.removeprefix(": "))

    async def _row(self, event: _FoundEvent) -> Row:
        entry = event.entry
        await self._topics.load(of_few_records(refs_of(entry.event)))
        return Row(
            entry.at,
            entry.time_ms,
            entry.event.e,
            getattr(entry.event, "session", None),
            words(entry.event, self._topics, entry.jumped_ms)
            + (f": {entry.cause}" if entry.cause else ""),
            event.payload,
            entry.void,
            _end_of(entry),
        )


def _end_of(entry: EventEntry) -> Position:
    """Return the last position of an event."""
    return entry.at + max(entries(entry.event), 1) - 1
