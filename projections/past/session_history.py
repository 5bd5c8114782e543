"""The history of one session, with fast access to its state at any position.

The log is folded once, from its beginning to its end, by the fold of the broker; events that do not
concern the session are skipped. The history keeps the positions of the session's events and, at
intervals, its state. A state in between is a kept state plus the few events that follow, which are
read again from the log. Memory is bounded: states are kept at longer intervals as they become
larger or more numerous, and for a session with very many events only the latest ones are kept.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, NamedTuple

import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    MessagesCarried,
    RetainedSnapshot,
    SessionSnapshot,
)
from eventstore.format.positions import INDEX_BITS, Position, position
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.indexed_reading import read_listed
from eventstore.reading.keys import SESSION
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_points import time_of
from eventstore.reading.progress import few_collections
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency
from projections.state.node_state import NodeState
from projections.state.retained import RetainedIndex
from projections.state.session import SessionState
from projections.state.snapshot import Part, decode_session, encode_session

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

MAX_EVENTS = 400_000
"""Number of events of a session that are kept; when there are more, the older half is dropped."""
STATE_BYTES = 16 * 1024 * 1024
"""Largest size of all kept states of one session."""
MAX_STATES = 1024
_FIRST_INTERVAL = 64
"""Initial number of events between two kept states."""
_BYTES_AN_EVENT = 256
"""For each of this many bytes of a state, the next one is kept one event later: encoding takes
time."""
_CACHED = 100_000
"""Events kept in memory after they were read, unless more lie between two states."""
_READ_AT_ONCE = 16
_REPEATING = (SessionSnapshot, RetainedSnapshot)
"""Events of a session that repeat known state; they change nothing."""
_NODE_EVENTS = frozenset({"CheckpointBegun", "CheckpointCompleted", "MessagesCarried"})


class SessionEvent(NamedTuple):
    """An event of the session."""

    at: Position
    time_ms: int
    event: Event
    steady_ms: int
    """The time without the jumps of the clock."""


@dataclass(frozen=True, slots=True)
class SessionMoment:
    """The state of the session as of a point."""

    number: int
    """Number of kept events that the state includes."""
    state: SessionState | None
    """None: the session did not exist."""
    before: SessionState | None
    """The state before the last of these events and the events that took effect with it."""
    last: SessionEvent | None
    """The last of these events; None if it is not kept."""
    earlier: Position | None
    """Position at which the previous event took effect; None if it is not kept."""
    later: Position | None
    """Position at which the next event takes effect; None: there is none."""


class _Kept(NamedTuple):
    number: int
    """Number of events before it."""
    parts: bytes
    """The state; empty: the session does not exist."""


class _Unretained(RetainedIndex):
    """Keeps no retained messages: the history does not need them, and payloads take memory."""

    def published(self, event: object, at: Position, time_ms: int, pieces: Sequence[bytes]) -> None:
        """Do nothing."""

    def repeated(self, event: object, at: Position, pieces: Sequence[bytes]) -> None:
        """Do nothing."""


def _ignore(_event: SessionEvent) -> None:
    pass


class SessionHistory:
    """The events and states of one session, up to the end of the log.

    ``begin`` is the first known position: everything before it was cut off, or dropped in a log
    with very many events of the session. ``done`` is the last folded record.
    """

    def __init__(
        self,
        name: str,
        begin: int,
        lock: AbstractAsyncContextManager[object],
        noted: Callable[[SessionEvent], None] = _ignore,
    ) -> None:
        """Begin with the first record of a log, ``begin``.

        ``lock``, such as an ``asyncio.Lock``, is held while a state is looked up, and for each
        folded record. ``noted`` is called with each event of the session, in order.
        """
        self.name = name
        self.first_record = begin
        self.begin: Position = position(begin, 0)
        self.done = begin - 1
        self.done_ms = 0
        self.forgotten = 0
        """Number of events that are no longer kept."""
        self._node = _fresh(begin)
        self._turns = TurnAssembler()
        # Effective positions; an event of a turn in several parts stands before its own.
        self._effective = array("Q")
        self._positions = array("Q")
        self._times = array("q")
        self._kept: list[_Kept] = []
        self._bytes = 0
        self._interval = _FIRST_INTERVAL
        self._due = 0
        self._cached_ranges: OrderedDict[int, list[SessionEvent]] = OrderedDict()
        self._still = lock
        self._noted = noted
        if not self._node.partial:
            self._keep()

    def __len__(self) -> int:
        """Return the number of events that are kept."""
        return len(self._positions)

    @property
    def partial(self) -> bool:
        """Whether the log was cut, and nothing is known before its first complete checkpoint."""
        return self._node.partial

    @property
    def state(self) -> SessionState | None:
        """The state after the last record."""
        return self._node.sessions.peek(self.name)

    @property
    def carried(self) -> dict[int, list[int]]:
        """Records that were cut off -> records that repeat messages of them."""
        return self._node.carried

    # ------------------------------------------------------------------------- folding

    async def grow(
        self, source: LogSource, last: int, pause: Callable[[int], Awaitable[None]]
    ) -> None:
        """Fold further records, up to one; ``pause`` is awaited after each, with its sequence.

        Raises CorruptLog, UnreadableEvent, CutMeanwhile; the history must not be used after that.
        """
        if self.done >= last:
            return
        with few_collections():
            async for record in read_listed(source, self._listed, self.done + 1, last):
                async with self._still:
                    self._follow(record)
                self.done, self.done_ms = record.sequence, record.time_ms
                await pause(record.sequence)
        if self.done < last:  # the last records contain no event of the session
            self.done, self.done_ms = last, await time_of(source, last)

    def _listed(self, index: LogIndex) -> Sequence[int]:
        """Return the records that matter to the session."""
        kinds = (index.rare(kind) for kind in _NODE_EVENTS)
        return sorted({*index.sequences(SESSION + self.name), *chain.from_iterable(kinds)})

    def _follow(self, record: Record) -> None:
        try:
            self._take(record)
        except INCONSISTENCIES as error:
            raise inconsistency(record, error) from error

    def _take(self, record: Record) -> None:
        _, complete = self._turns.take(record)
        for part in complete:
            if any(_concerns(raw, self.name) for raw in part.raw_events):
                self._fold(part, position(record.sequence, 0))

    def _fold(self, part: Record, turn: Position) -> None:
        """Fold the events of a part of a turn that is complete with the record at ``turn``."""
        base = position(part.sequence, 0)
        node = self._node
        for index, event in part.events():
            session = getattr(event, "session", None)
            if session is None:
                if isinstance(event, (CheckpointBegun, CheckpointCompleted, MessagesCarried)):
                    node.apply(event, base + index, part.steady_ms)
            elif session == self.name:
                node.apply(event, base + index, part.steady_ms)
                if not node.partial and type(event) not in _REPEATING:
                    self._note(base + index, max(base + index, turn), part.time_ms)
                    self._noted(SessionEvent(base + index, part.time_ms, event, part.steady_ms))
            if not self._kept and not node.partial:
                self.begin = max(base + index, turn)
                self._keep()

    def _note(self, at: Position, effective: Position, time_ms: int) -> None:
        self._positions.append(at)
        self._effective.append(effective)
        self._times.append(time_ms)
        self._due -= 1
        if self._due <= 0:
            self._keep()
        if len(self) > MAX_EVENTS:
            self._forget()

    def _keep(self) -> None:
        """Keep the current state."""
        state = self._node.sessions.get(self.name)
        parts = b"" if state is None else orjson.dumps(encode_session(state))
        self._kept.append(_Kept(self.forgotten + len(self), parts))
        self._bytes += len(parts)
        while len(self._kept) > MAX_STATES or (self._bytes > STATE_BYTES and len(self._kept) > 2):
            # The first one stays: all others can be derived from it.
            del self._kept[1::2]
            self._bytes = sum(len(one.parts) for one in self._kept)
            self._interval *= 2
            self._cached_ranges.clear()
        self._due = max(self._interval, len(parts) // _BYTES_AN_EVENT)

    def _forget(self) -> None:
        """Forget the older half of the events."""
        half = self.forgotten + len(self) // 2
        kept = [one for one in self._kept if one.number >= half]
        if not kept:
            self._keep()
            kept = self._kept[-1:]
        gone = kept[0].number - self.forgotten
        self._kept = kept
        self._bytes = sum(len(one.parts) for one in kept)
        self._cached_ranges.clear()
        # The first kept state is the one after the last forgotten event.
        self.begin = self._effective[gone - 1]
        for column in (self._positions, self._effective, self._times):
            del column[:gone]
        self.forgotten += gone

    # ------------------------------------------------------------------------- lookups

    def number_at(self, at: Position) -> int:
        """Return the number of kept events that had taken effect at a position."""
        return bisect_right(self._effective, at)

    def position_of(self, number: int) -> Position:
        """Return the position from which an event, counted from 0, has taken effect."""
        return self._effective[number]

    @property
    def first_ms(self) -> int | None:
        """Time of the first kept event; None: there is none."""
        return self._times[0] if self._times else None

    def counts(self, times: Sequence[int]) -> list[int]:
        """Return the number of events in each interval between successive times."""
        ends = [bisect_left(self._times, one) for one in times]
        return [after - before for before, after in pairwise(ends)]

    async def at(self, source: LogSource, at: Position) -> SessionMoment:
        """Return the session as of a position at or after ``begin``.

        Raises CorruptLog and CutMeanwhile.
        """
        async with self._still:
            return await self._at(source, at)

    async def _at(self, source: LogSource, at: Position) -> SessionMoment:
        number = self.number_at(at)
        effective = self._effective
        later = effective[number] if number < len(self) else None
        if not number:
            return SessionMoment(0, _thawed(self.name, self._kept[0]), None, None, None, later)
        # A turn in several parts takes effect at one position.
        first = bisect_left(effective, effective[number - 1])
        before = await self._after(source, first)
        (last,) = await self._between(source, number - 1, number)
        state = await self._after(source, number)
        earlier = effective[first - 1] if first else None
        return SessionMoment(number, state, before, last, earlier, later)

    async def _after(self, source: LogSource, number: int) -> SessionState | None:
        """Return the state after a number of the kept events."""
        absolute = number + self.forgotten
        index = bisect_right(self._kept, absolute, key=_number) - 1
        kept = self._kept[index]
        node = _fresh(1)
        state = _thawed(self.name, kept)
        if state is not None:
            node.sessions[self.name] = state
        for one in await self._between(source, kept.number - self.forgotten, number):
            node.apply(one.event, one.at, one.steady_ms)
        return node.sessions.get(self.name)

    async def _between(self, source: LogSource, first: int, last: int) -> list[SessionEvent]:
        """Return the events from one number up to another, between two kept states."""
        if first == last:
            return []
        index = bisect_right(self._kept, first + self.forgotten, key=_number) - 1
        start = self._kept[index].number - self.forgotten
        stretch = self._cached_ranges.get(start)
        if stretch is None or len(stretch) < last - start:
            stop = len(self)
            if index + 1 < len(self._kept):
                stop = self._kept[index + 1].number - self.forgotten
            stretch = await self._read(source, start, stop)
            self._cached_ranges[start] = stretch
        self._cached_ranges.move_to_end(start)
        while (
            len(self._cached_ranges) > 1 and sum(map(len, self._cached_ranges.values())) > _CACHED
        ):
            self._cached_ranges.popitem(last=False)
        return stretch[first - start : last - start]

    async def _read(self, source: LogSource, first: int, last: int) -> list[SessionEvent]:
        wanted = list(zip(self._positions[first:last], self._times[first:last], strict=True))
        times = dict(wanted)
        found: dict[Position, SessionEvent] = {}
        sequences = sorted({at >> INDEX_BITS for at, _ in wanted})
        for start in range(0, len(sequences), _READ_AT_ONCE):
            for record in await source.some(sequences[start : start + _READ_AT_ONCE]):
                base = position(record.sequence, 0)
                if not any(_concerns(raw, self.name) for raw in record.raw_events):
                    continue
                for index, event in record.events():
                    if base + index in times:
                        found[base + index] = SessionEvent(
                            base + index, record.time_ms, event, record.steady_ms
                        )
        return [found[at] for at, _ in wanted]


def _fresh(begin: int) -> NodeState:
    node = NodeState(begin)
    node.retained = _Unretained()
    return node


def _concerns(raw: dict[str, object], name: str) -> bool:
    return raw.get("session") == name or raw.get("e") in _NODE_EVENTS


def _number(kept: _Kept) -> int:
    return kept.number


def _thawed(name: str, kept: _Kept) -> SessionState | None:
    if not kept.parts:
        return None
    parts: list[Part] = orjson.loads(kept.parts)
    return decode_session(name, parts)
