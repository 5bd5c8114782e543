"""``foldmq log``: the events of the log, one line each."""

import asyncio
import contextlib
import difflib
import sys
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Iterator
from dataclasses import dataclass
from typing import NamedTuple, get_args

from cli.common import text
from cli.logsource.event_text import as_object, payload_words, words
from cli.logsource.moments import Cut, Moment, cut_at, cut_off, parse_moment, start_at
from cli.logsource.source import CutMeanwhile, CutOff, Source, open_source, say
from cli.logsource.source_flags import SourceFlags, UsageError
from cli.logsource.topic_lookup import TopicBook, topic_matcher
from eventstore.format import (
    Delivered,
    Event,
    MessageDropped,
    MessagePublished,
    MessagesCarried,
    Position,
    Queued,
    Record,
    Released,
    RetainedCleared,
    RetainedSnapshot,
    WillArmed,
    entries,
    from_runs,
    position,
)
from projections.state import TurnAssembler

TYPES: dict[str, type] = {kind.__name__.casefold(): kind for kind in get_args(Event)}
_FOLLOW_SHOWS = 10
_POLL_SECONDS = 0.2
_SESSION_LIMIT = 40
_LOOK_BACK = 64
"""Records that are read first when the last events are wanted; each further look takes 8 times
as many."""


@dataclass(frozen=True, slots=True)
class Selection:
    """Which events are wanted; None and empty: all."""

    session: str | None = None
    topic: str | None = None
    types: tuple[type, ...] = ()
    start: Moment | None = None
    end: Moment | None = None
    count: int | None = None
    follow: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """How events are printed."""

    as_json: bool = False
    payload: bool = False


class Entry(NamedTuple):
    """An event and where it stands."""

    at: Position
    time_ms: int
    event: Event
    area: memoryview
    """The payload area of its record."""
    void: bool
    """It belongs to a turn that never was complete: it did not happen."""


def selection(
    session: str | None,
    topic: str | None,
    types: Iterable[str],
    bounds: tuple[str | None, str | None],
    count: int | None,
    *,
    follow: bool,
) -> Selection:
    """Read what is wanted; raises UsageError."""
    start, end = (parse_moment(one) if one is not None else None for one in bounds)
    if follow and end is not None:
        raise UsageError("-f and --to exclude each other: give one")
    if follow and count is None and start is None:
        count = _FOLLOW_SHOWS
    chosen = tuple(_event_type(one) for one in types)
    return Selection(session, topic, chosen, start, end, count, follow)


def _event_type(given: str) -> type:
    found = TYPES.get(given.casefold())
    if found is None:
        close = difflib.get_close_matches(given.casefold(), TYPES, n=1)
        names = [TYPES[one].__name__ for one in close] or [kind.__name__ for kind in TYPES.values()]
        raise UsageError(f'no event type "{text.escaped(given)}": is it {", ".join(names)}?')
    return found


def run(flags: SourceFlags, wanted: Selection, look: Look) -> None:
    """Print the events that are wanted."""
    asyncio.run(_run(flags, wanted, look))


async def _run(flags: SourceFlags, wanted: Selection, look: Look) -> None:
    selector = Selector(wanted)
    async with open_source(flags) as source:
        if wanted.follow and not source.live:
            raise UsageError(
                f"there is nothing to follow: no broker runs on {source.where}, "
                "its log stays as it is"
            )
        await _check_bounds(source, wanted)
        reader = _Reader(source, selector, thorough=wanted.topic is not None)
        printer = _Printer(reader.topics, look)
        end = await cut_at(source, wanted.end)
        turns = TurnAssembler(anywhere=True)
        if wanted.count is not None and wanted.start is None:
            chosen, turns = await _latest(reader, wanted.count, end, ended=not wanted.follow)
            for entry in chosen:
                await printer.print(entry)
        else:
            start = await start_at(source, wanted.start)
            if not await _print_from(reader, printer, start, end, turns, wanted):
                return
        if wanted.follow:
            await _follow(reader, printer, turns)


async def _check_bounds(source: Source, wanted: Selection) -> None:
    """Say what was cut off of what is wanted; raise CutOff when that is all."""
    if await cut_off(source, wanted.end):
        raise CutOff(f"nothing is left of that: {source.beginning()}")
    if await cut_off(source, wanted.start):
        say(source.beginning())


async def _print_from(
    reader: "_Reader",
    printer: "_Printer",
    start: Cut,
    end: Cut,
    turns: TurnAssembler,
    wanted: Selection,
) -> bool:
    """Print events; return whether more are wanted."""
    left = wanted.count
    async with contextlib.aclosing(
        reader.entries(start, end, turns, ended=not wanted.follow)
    ) as found:
        async for entry in found:
            await printer.print(entry)
            if left is not None:
                left -= 1
                if not left:
                    return False
    return True


async def _latest(
    reader: "_Reader", count: int, end: Cut, *, ended: bool
) -> tuple[list[Entry], TurnAssembler]:
    """Return the last events that are wanted, looking back as far as it takes."""
    first = max(1, reader.source.first)
    back = _LOOK_BACK
    while True:
        start = max(first, end.sequence - back + 1)
        turns = TurnAssembler(anywhere=True)
        chosen: deque[Entry] = deque(maxlen=count)
        async for entry in reader.entries(Cut(start, 0), end, turns, ended=ended):
            chosen.append(entry)
        if len(chosen) >= count or start == first:
            return list(chosen), turns
        back *= 8


async def _follow(reader: "_Reader", printer: "_Printer", turns: TurnAssembler) -> None:
    done = reader.source.last
    while True:
        sys.stdout.flush()
        first, last = await reader.source.bounds()
        if first > done + 1:  # the broker was faster
            say(f"some records before record {first} were cut off before they could be shown")
            done, turns = first - 1, TurnAssembler(anywhere=True)
        if last > done:
            try:
                async for entry in reader.entries(Cut(done + 1, 0), Cut(last), turns, ended=False):
                    await printer.print(entry)
            except CutMeanwhile:
                continue
            done = last
        else:
            await asyncio.sleep(_POLL_SECONDS)


class Selector:
    """Tells which events are wanted."""

    def __init__(self, wanted: Selection) -> None:
        self._types = wanted.types
        self._session = wanted.session
        self._matches = topic_matcher(wanted.topic) if wanted.topic is not None else None

    async def selects(self, event: Event, topics: TopicBook) -> bool:
        """Tell whether an event is wanted; may read the log for the topics it concerns."""
        if self._types and type(event) not in self._types:
            return False
        if self._session is not None and getattr(event, "session", None) != self._session:
            return False
        if self._matches is None:
            return True
        refs = refs_of(event)
        await topics.load(refs)
        return any(map(self._matches, _topics(event, refs, topics)))


def _topics(event: Event, refs: list[Position], topics: TopicBook) -> Iterator[str]:
    """Yield the topics that an event concerns."""
    if isinstance(event, (MessagePublished, MessagesCarried, RetainedCleared, RetainedSnapshot)):
        yield from event.topics
    elif isinstance(event, WillArmed):
        yield event.topic
    for ref in refs:
        known = topics.get(ref)
        if known is not None:
            yield known.topic


def refs_of(event: Event) -> list[Position]:
    """Return the positions of the messages that an event concerns."""
    if isinstance(event, (Delivered, Queued, Released, MessageDropped)):
        return from_runs(event.refs)
    return []


class _Reader:
    """Reads events and chooses those that are wanted."""

    def __init__(self, source: Source, selector: Selector, *, thorough: bool) -> None:
        self.source = source
        self.topics = TopicBook(source, thorough=thorough)
        self._selector = selector

    async def entries(
        self, start: Cut, end: Cut, turns: TurnAssembler, *, ended: bool
    ) -> AsyncGenerator[Entry, None]:
        """Yield what is wanted between two places; ``ended``: nothing more follows the end."""
        if start.sequence <= end.sequence:
            async for record in self.source.records(start.sequence, end.sequence):
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
        self, record: Record, start: Cut, end: Cut, *, void: bool
    ) -> AsyncIterator[Entry]:
        base = position(record.sequence, 0)
        events = list(record.events())
        self.topics.note(base, events)
        for index, event in events:
            if record.sequence == start.sequence and index + entries(event) <= start.index:
                continue
            if record.sequence == end.sequence and index > end.index:
                return
            if await self._selector.selects(event, self.topics):
                yield Entry(base + index, record.time_ms, event, record.payload, void)


class _Printer:
    """Prints events."""

    def __init__(self, topics: TopicBook, look: Look) -> None:
        self._topics = topics
        self._look = look

    async def print(self, entry: Entry) -> None:
        """Print one event; may read the log for the topics that it concerns."""
        await self._topics.load(refs_of(entry.event))
        line = self._object(entry) if self._look.as_json else self._line(entry)
        sys.stdout.write(line + "\n")

    def _object(self, entry: Entry) -> str:
        area = entry.area if self._look.payload else None
        found = as_object(entry.event, entry.at, entry.time_ms, self._topics, area)
        return text.json_line({**found, "void": True} if entry.void else found)

    def _line(self, entry: Entry) -> str:
        session = getattr(entry.event, "session", None)
        who = text.name(session, _SESSION_LIMIT) if session is not None else "-"
        said = words(entry.event, self._topics)
        if self._look.payload:
            said += payload_words(entry.event, entry.area)
        if entry.void:
            said = f"void, its turn was never complete: {said}"
        return f"{text.stamp(entry.at, entry.time_ms)}  {who:<10} {said}"
