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
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from copy import copy
from dataclasses import dataclass
from itertools import chain, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    LogEndUnproven,
    LogSalvaged,
    MessagesCarried,
    RetainedSnapshot,
    SessionSnapshot,
)
from eventstore.format.positions import Position, position, sequence_of
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
_READ_AT_ONCE = 16
_REPEATING = (SessionSnapshot, RetainedSnapshot)
"""Events of a session that repeat known state; they change nothing."""
_SALVAGES = (LogSalvaged, LogEndUnproven)
"""Events of the node after which the session is not certain, or certain again."""
_CHECKPOINTS = (CheckpointBegun, CheckpointCompleted)
_OF_THE_NODE = (*_CHECKPOINTS, *_SALVAGES, MessagesCarried)
_NODE_EVENTS = frozenset(kind.__name__ for kind in _OF_THE_NODE)


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
    unsure: str | None = None
    """Why the state, or that there was no session, is not certain; None: it is."""


_OF_LOSSES: Final = ("_unsure", "_salvages", "_begun", "_repeated", "_parts", "doubtful")
"""What a node knows of lost records, beside the state of the session and the doubts."""


class _Kept(NamedTuple):
    number: int
    """Number of events before it."""
    parts: bytes
    """The state; empty: the session does not exist."""
    loss: dict[str, Any] | None = None
    """None: no records were lost."""


class _Unretained(RetainedIndex):
    """Keeps no retained messages: the history does not need them, and payloads take memory."""

    def published(self, event: object, at: Position, time_ms: int, pieces: Sequence[bytes]) -> None:
        """Do nothing."""

    def repeated(self, event: object, at: Position, pieces: Sequence[bytes]) -> None:
        """Do nothing."""


def _node(begin: int) -> NodeState:
    """Return a node that keeps no retained messages."""
    node = NodeState(begin)
    node.retained = _Unretained()
    return node


def _loss(node: NodeState) -> dict[str, Any] | None:
    """Return what a node knows of lost records; None: there are none."""
    if not node.proof.doubts:
        return None
    own = {name: copy(getattr(node, name)) for name in _OF_LOSSES}
    return {**own, "doubts": [*node.proof.doubts]}


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
        self._node = _node(begin)
        self._turns = TurnAssembler()
        # Effective positions; an event of a turn in several parts stands before its own.
        self._effective = array("Q")
        self._positions = array("Q")
        self._times = array("q")
        self._kept: list[_Kept] = []
        self._bytes = 0
        self._interval = _FIRST_INTERVAL
        self._due = 0
        self._salvages: list[tuple[int, int, LogSalvaged]] = []
        """Record and time of each salvage."""
        self._range: tuple[int, list[SessionEvent]] = 0, []
        """Number of the first event that was read last, and the events from there on."""
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
            for part in self._turns.take(record)[1]:
                if any(_concerns(raw, self.name) for raw in part.raw_events):
                    self._fold(part, position(record.sequence, 0))
        except INCONSISTENCIES as error:
            raise inconsistency(record, error) from error

    def _fold(self, part: Record, turn: Position) -> None:
        """Fold the events of a part of a turn that is complete with the record at ``turn``."""
        base = position(part.sequence, 0)
        node = self._node
        node.reach(sequence_of(turn))
        for index, event in part.events():
            if not self._is_of_session(event):
                continue
            changes = self._changes(event)
            if isinstance(event, LogSalvaged):
                self._salvages.append((part.sequence, part.time_ms, event))
            node.apply(event, base + index, part.steady_ms)
            if not node.partial and changes:
                self._note(base + index, max(base + index, turn), part.time_ms)
                self._noted(SessionEvent(base + index, part.time_ms, event, part.steady_ms))
            if not self._kept and not node.partial:
                self.begin = max(base + index, turn)
                self._keep()

    def _is_of_session(self, event: Event) -> bool:
        session = getattr(event, "session", None)
        return isinstance(event, _OF_THE_NODE) if session is None else session == self.name

    def _changes(self, event: Event) -> bool:
        """Return whether an event may change the session, and so is part of its history.

        Behind lost records also those count that repeat the state.
        """
        if isinstance(event, (*_REPEATING, *_CHECKPOINTS)):
            return self._node.unsure
        if isinstance(event, LogEndUnproven):
            return self._node.unsure and bool(event.salvaged)
        return not isinstance(event, MessagesCarried)

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
        self._kept.append(_Kept(self.forgotten + len(self), parts, _loss(self._node)))
        self._bytes += len(parts)
        while len(self._kept) > MAX_STATES or (self._bytes > STATE_BYTES and len(self._kept) > 2):
            # The first one stays: all others can be derived from it.
            del self._kept[1::2]
            self._bytes = sum(len(kept.parts) for kept in self._kept)
            self._interval *= 2
        self._due = max(self._interval, len(parts) // _BYTES_AN_EVENT)

    def _forget(self) -> None:
        """Forget the older half of the events."""
        half = self.forgotten + len(self) // 2
        kept = [state for state in self._kept if state.number >= half]
        if not kept:
            self._keep()
            kept = self._kept[-1:]
        count = kept[0].number - self.forgotten
        self._kept = kept
        self._bytes = sum(len(state.parts) for state in kept)
        self._range = 0, []
        # The first kept state is the one after the last forgotten event.
        self.begin = self._effective[count - 1]
        for column in (self._positions, self._effective, self._times):
            del column[:count]
        self.forgotten += count

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
        ends = [bisect_left(self._times, time_ms) for time_ms in times]
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
            state, unsure = self._known(self._thawed(self._kept[0]), at)
            return SessionMoment(0, state, None, None, None, later, unsure)
        # A turn in several parts takes effect at one position.
        first = bisect_left(effective, effective[number - 1])
        kept = self._kept[bisect_right(self._kept, first + self.forgotten, key=_number) - 1]
        node, before, start = self._thawed(kept), None, kept.number - self.forgotten
        events = await self._events(source, start, number)
        for place, each in enumerate(events, start):
            if place == first and (state := node.sessions.get(self.name)) is not None:
                before = decode_session(self.name, encode_session(state))
            node.reach(sequence_of(effective[place]))
            node.apply(each.event, each.at, each.steady_ms)
        state, unsure = self._known(node, at)
        earlier = effective[first - 1] if first else None
        return SessionMoment(number, state, before, events[-1], earlier, later, unsure)

    def _known(self, node: NodeState, at: Position) -> tuple[SessionState | None, str | None]:
        """Return the state as of a position, and why it is not certain."""
        node.reach(sequence_of(at))
        state = node.sessions.get(self.name)
        for where, time_ms, salvage in self._salvages:
            if salvage.first <= sequence_of(at) < where:  # the event about it comes later
                node.proof.take(salvage, where, time_ms)
                node.doubtful = dict.fromkeys(node.sessions.names())
        unsure = node.unsure_state() if state is None else node.unsure_session(self.name)
        return state, unsure

    def _thawed(self, kept: _Kept) -> NodeState:
        """Return a kept state."""
        node = _node(1)
        if kept.parts:
            parts: list[Part] = orjson.loads(kept.parts)
            node.sessions[self.name] = decode_session(self.name, parts)
        if kept.loss is not None:
            for name in _OF_LOSSES:
                setattr(node, name, copy(kept.loss[name]))
            node.proof.doubts = [*kept.loss["doubts"]]
        return node

    async def _events(self, source: LogSource, first: int, end: int) -> list[SessionEvent]:
        """Return the events from that after a kept state up to another one."""
        start, events = self._range
        if start != first or len(events) < end - first:
            following = bisect_right(self._kept, first + self.forgotten, key=_number)
            stop = len(self)
            if following < len(self._kept):
                stop = self._kept[following].number - self.forgotten
            events = await self._read(source, first, max(end, stop))
            self._range = first, events
        return events[: end - first]

    async def _read(self, source: LogSource, first: int, end: int) -> list[SessionEvent]:
        positions = self._positions[first:end]
        events: dict[Position, SessionEvent | None] = dict.fromkeys(positions)
        sequences = sorted({sequence_of(at) for at in positions})
        for start in range(0, len(sequences), _READ_AT_ONCE):
            for record in await source.some(sequences[start : start + _READ_AT_ONCE]):
                base = position(record.sequence, 0)
                if not any(_concerns(raw, self.name) for raw in record.raw_events):
                    continue
                for index, event in record.events():
                    if (at := base + index) in events:
                        events[at] = SessionEvent(at, record.time_ms, event, record.steady_ms)
        return [event for event in events.values() if event is not None]


def _concerns(raw: dict[str, object], name: str) -> bool:
    return raw.get("session") == name or raw.get("e") in _NODE_EVENTS


def _number(kept: _Kept) -> int:
    return kept.number
