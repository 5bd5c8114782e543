"""Everything that one node's log says, as one fold: its sessions and its retained index."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

from eventstore.events import (
    BrokerStarted,
    BrokerStopped,
    Event,
    MessagePublished,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    entries,
)
from eventstore.positions import Position, position
from eventstore.records import Record, payload_bounds
from projections.retained import RetainedIndex
from projections.session import SessionState, evolve

if TYPE_CHECKING:
    from collections.abc import Sequence


class NodeState:
    """Sessions by client identifier, and the retained index."""

    __slots__ = ("_held", "applied", "entries", "retained", "sessions")

    def __init__(self) -> None:
        self.sessions: dict[str, SessionState] = {}
        self.retained = RetainedIndex()
        self.applied = 0
        """Stream sequence of the last record that was folded."""
        self.entries = 0
        """Positions folded: each message of each event counts."""
        self._held: list[Record] = []

    def apply_record(self, record: Record, only: str | None = None) -> None:
        """Fold a record; the parts of a turn are held back until its last part is there.

        ``only`` folds the events of one session alone. Raises UnreadableEvent for an event that
        this version does not know.
        """
        if record.part == 0 and self._held:
            self._held = []
        self._held.append(record)
        if record.last:
            complete = self._held[0].part == 0
            held, self._held = self._held, []
            if complete:
                for part in held:
                    self._fold(part, only)
        self.applied = record.sequence

    def _fold(self, record: Record, only: str | None) -> None:
        base = position(record.sequence, 0)
        for index, event in record.events():
            self.entries += entries(event)
            if only is not None and getattr(event, "session", None) != only:
                continue
            payloads: Sequence[bytes] = ()
            if isinstance(event, MessagePublished) and event.retain:
                bounds = payload_bounds(event)
                area = record.payload
                payloads = [bytes(area[start:stop]) for start, stop in itertools.pairwise(bounds)]
            self.apply(event, base + index, record.time_ms, payloads)

    def apply(
        self, event: Event, at: Position, time_ms: int, payloads: Sequence[bytes] = ()
    ) -> SessionState | None:
        """Fold one event; return the state of the session that it belongs to, if that goes on.

        ``payloads`` are those of a retained MessagePublished, and not looked at otherwise.
        """
        if isinstance(event, (BrokerStarted, BrokerStopped)):
            return None
        sessions = self.sessions
        name = event.session
        state = sessions.get(name)
        if isinstance(event, SessionExpired):
            sessions.pop(name, None)
            self.retained.other(event)
            return None
        if state is None:
            state = SessionState(name)
            if isinstance(event, SessionOpened):
                sessions[name] = state
        evolve(state, event, at, time_ms)
        if isinstance(event, MessagePublished):
            if event.retain:
                self.retained.published(event, at, payloads)
        elif isinstance(event, SessionClosed):
            if state.clean and state.will is None:
                sessions.pop(name, None)
                self.retained.session_ended(event)
                return None
        else:
            self.retained.other(event)
        return state
