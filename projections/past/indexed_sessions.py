"""The state of one session at a point of the log: its last saved state and the events since."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from eventstore.format.event_parsing import Event, parse_event
from eventstore.format.events import SessionClosed, SessionExpired, SessionOpened
from eventstore.format.node_events import CheckpointCompleted, SessionSnapshot
from eventstore.format.positions import (
    INDEX_BITS,
    Position,
    count_runs,
    position,
    sequence_of,
)
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.indexed_reading import fetch_listed, read_listed
from eventstore.reading.keys import LIFECYCLE, SESSION
from eventstore.reading.log_index import SavedState
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.segment import BadIndex
from projections.past.lost_records import lost_records
from projections.past.subscriber_state import DeniedFilters
from projections.past.topic_lookup import carriers_in
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency
from projections.state.session import SessionState
from projections.state.single_session import SessionFold
from projections.state.snapshot import decode_session

_NEVER = 1 << 62
"""A position after every event."""
_NAMES_AT_ONCE = 64
"""Number of sessions looked up between two pauses."""


@dataclass(slots=True)
class SessionAt:
    """The state of a session as of a point."""

    state: SessionState | None
    """None: the session did not exist."""
    carried: dict[int, list[int]] = field(default_factory=dict)
    """Records that were cut off -> records that repeat messages of them."""


async def session_at(source: LogSource, name: str, point: LogPoint) -> SessionAt | None:
    """Return a session as of a point; None: the log has to be folded.

    Raises CorruptLog, UnreadableEvent or CutMeanwhile.
    """
    if not point.sequence:
        return None
    try:
        if await lost_records(source, point.sequence):
            return None  # only a fold of the log knows what a session may lack
        sessions = IndexedSessions(source)
        if not await sessions.covers(position(point.sequence, point.index)):
            return None
        carried = await carriers_in(source, last=point.sequence)
        return SessionAt(await sessions.at(name, point), carried)
    except BadIndex:
        return None


class IndexedSessions:
    """The sessions of a log, found with its index; every method raises BadIndex."""

    def __init__(self, source: LogSource) -> None:
        self._source = source
        self._index = source.index
        self._whole: Position | None = None
        self._completed: Position = 0
        """Position of the CheckpointCompleted from which states are known; 0: none is needed. Set
        by :meth:`covers`."""

    async def covers(self, at: Position) -> bool:
        """Return whether the states as of a position are known."""
        salvages = self._index.rare("LogSalvaged")
        if salvages and salvages[0] <= sequence_of(at):
            return False
        if self._whole is None:
            self._whole = await self._known_from()
        return self._whole >= 0 and at >= self._whole and at >= position(self._index.first, 0)

    async def _known_from(self) -> Position:
        """Return the position from which the states of all sessions are known; -1: none.

        A checkpoint takes effect with the last part of its turn.
        """
        source, index = self._source, self._index
        if index.first > source.begin:  # older segments were removed; their last states remain
            return 0 if index.known_before else -1
        if source.begin <= 1:
            return 0
        turns = TurnAssembler()
        async for record in read_listed(
            source, lambda index: index.rare("CheckpointCompleted"), source.begin, source.last
        ):
            for part in turns.take(record)[1]:
                for at, event in part.events():
                    began = event.begun if isinstance(event, CheckpointCompleted) else 0
                    if began >= position(source.begin, 0):
                        self._completed = position(part.sequence, at)
                        return max(self._completed, position(record.sequence, 0))
        self._completed = _NEVER
        return -1

    async def at(self, name: str, point: LogPoint) -> SessionState | None:
        """Return the state as of a point; the events of incomplete turns do not count."""
        stop = position(point.sequence, point.index) + 1
        sessions, _ = await self._folded([name], point.sequence, stop, _no_pause)
        return sessions[name].fold.state

    async def all_at(
        self, names: Iterable[str], sequence: int, pause: Callable[[], Awaitable[None]]
    ) -> dict[str, SessionState | None]:
        """Return the states of these sessions after a record; None: the session did not exist.

        Each record is read once for all of them. ``pause`` is awaited from time to time.
        """
        sessions, _ = await self._folded(names, sequence, position(sequence + 1, 0), pause)
        return {name: session.fold.state for name, session in sessions.items()}

    async def before(self, name: str, at: Position) -> tuple[SessionState | None, DeniedFilters]:
        """Return the state and the denied filters as of a position: after everything before it.

        The turn of the position must be complete.
        """
        sequence = sequence_of(at)
        sessions, parts = await self._folded([name], sequence, at, _no_pause)
        if parts and parts[-1].sequence == sequence:
            for part in parts:
                _fold(sessions, part, at)
        return sessions[name].fold.state, sessions[name].denied

    async def _folded(
        self,
        names: Iterable[str],
        last: int,
        stop: Position,
        pause: Callable[[], Awaitable[None]],
    ) -> tuple[dict[str, _Folded], Sequence[Record]]:
        """Fold sessions up to record ``last``, and of it the events before a position.

        Return also the parts of a turn that continues after it, which are not folded.
        """
        await self.covers(0)
        sessions: dict[str, _Folded] = {}
        listed: set[int] = set()
        for number, name in enumerate(names):
            sessions[name] = session = self._begin(name, position(sequence_of(stop), 0))
            listed.update(self._index.sequences(SESSION + name, session.start, last))
            if number % _NAMES_AT_ONCE == 0:
                await pause()
        first = min((session.start for session in sessions.values()), default=last + 1)
        turns = TurnAssembler()
        async for record in read_listed(self._source, lambda _: sorted(listed), first, last):
            for part in turns.take(record)[1]:
                _fold(sessions, part, stop)
            await pause()
        return sessions, turns.rest()

    async def is_clean(self, name: str, sequence: int) -> bool:
        """Return whether a session, before a record, would end with its connection."""
        saved = self._saved(name, position(sequence, 0))
        clean = bool(saved is not None and saved.parts and saved.parts[0].get("clean"))
        start = saved.bound >> INDEX_BITS if saved is not None else self._index.first
        listed = self._index.sequences(LIFECYCLE + name, start, sequence - 1)
        turns = TurnAssembler()
        for record in await fetch_listed(self._source, listed):
            for part in turns.take(record)[1]:
                for _, event in own_events(part, name):
                    clean = _clean_after(event, clean)
        return clean

    def _saved(self, name: str, bound: Position) -> SavedState | None:
        """Return the last state before a position, if all later records can be read."""
        saved = self._index.state_before(name, bound)
        if saved is not None and saved.bound < position(self._index.first, 0):
            since = saved.bound >> INDEX_BITS
            if self._index.listed_before(SESSION + name, since):
                return None
        return saved

    def _begin(self, name: str, bound: Position) -> _Folded:
        """Return a session to be folded from its last state before a position on."""
        source, index = self._source, self._index
        saved = self._saved(name, bound)
        if saved is not None:
            fold = SessionFold(name)
            if saved.parts is not None:
                fold.state = decode_session(name, saved.parts)
            start = max(sequence_of(saved.bound), index.first)
            return _Folded(fold, start, DeniedFilters(saved.denied))
        # Without a saved state, the session did not exist in the removed older segments.
        own = index.first == source.begin and source.begin > 1
        return _Folded(SessionFold(name, self._completed if own else 0), index.first)


@dataclass(slots=True)
class _Folded:
    """A session, folded from record ``start`` on."""

    fold: SessionFold
    start: int
    denied: DeniedFilters = field(default_factory=DeniedFilters)


async def _no_pause() -> None:
    pass


def _fold(sessions: Mapping[str, _Folded], part: Record, stop: Position) -> None:
    """Fold the events of these sessions that begin before a position; others are not parsed."""
    at = position(part.sequence, 0)
    try:
        for raw in part.raw_events:
            session = sessions.get(raw.get("session", ""))
            if session is not None and part.sequence >= session.start and at < stop:
                event = parse_event(raw)
                session.fold.take(event, at, part.steady_ms)
                session.denied.take(event, at, part.time_ms)
            at += count_entries(raw)
    except INCONSISTENCIES as error:
        raise inconsistency(part, error) from error


def own_events(record: Record, name: str) -> Iterator[tuple[Position, Event]]:
    """Yield the events of one session with their positions; others are not parsed.

    Only for records that were indexed, and are therefore readable.
    """
    at = position(record.sequence, 0)
    for raw in record.raw_events:
        if raw.get("session") == name:
            yield at, parse_event(raw)
        at += count_entries(raw)


def count_entries(raw: dict[str, Any]) -> int:
    """Return the number of entries of an event, which is not parsed."""
    kind = raw["e"]
    if kind in _COUNTED:
        return int(raw["count"])
    return count_runs(raw["pids"] if "pids" in raw else raw["refs"]) if kind in _RUNS else 1


_RUNS = frozenset(
    {
        "Delivered", "Queued", "Released", "InboundReplaced", "Acked", "Received", "Completed",
        "Refused", "Returned", "Expired", "Assigned", "Redelivered", "ForwardRefused",
    }
)  # fmt: skip
"""Events with a value for each entry in a column: see ``event_parsing.entries``."""
_COUNTED = frozenset({"MessagePublished", "MessagesCarried", "RetainedSnapshot"})


def _clean_after(event: Event, clean: bool) -> bool:
    if isinstance(event, SessionOpened):
        return event.clean
    if isinstance(event, SessionClosed):
        return clean if event.expiry is None else not event.expiry
    if isinstance(event, SessionSnapshot) and event.part == 0:
        return bool(event.state.get("clean"))
    return False if isinstance(event, SessionExpired) else clean
