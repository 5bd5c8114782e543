"""Finds the messages that ``eventstore.log.damaged_log`` must keep for a log's sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.format import Event, SessionClosed, SessionOpened, Subscribed
from projections.replay.replay import fold
from projections.state import NodeState, expand_runs, reference_runs

if TYPE_CHECKING:
    from eventstore.format import Position, Record


class SalvageNeeds:
    """The messages that the sessions of a log need, found by the fold of the broker."""

    def __init__(self, begin: int) -> None:
        """Begin with record ``begin``."""
        self._state = NodeState(begin)

    def take(self, record: Record) -> None:
        """Fold the next record; raises CorruptLog and UnreadableEvent."""
        fold(self._state, record)

    def before(self, first: Position) -> dict[str, set[Position]]:
        """Return the messages before a position that sessions need, by session."""
        found: dict[str, set[Position]] = {}
        sessions = self._state.sessions
        for name in sessions.names():
            state = sessions.peek(name) if sessions.holds(name, first) else None
            if state is not None:
                found[name] = set(expand_runs(reference_runs(state), first))
        return found

    def reset_events(self, session: str) -> list[Event]:
        """Return the events that remove everything from a session except its subscriptions."""
        state = self._state.sessions.peek(session)
        if state is None:
            return []
        generation = state.generation + 1
        opened = SessionOpened(
            session,
            resumed=False,
            clean=state.clean,
            level=state.level,
            generation=generation,
            user=state.user,
            expiry=state.expiry,
        )
        granted = [(held.filter, held.qos) for held in state.active()]
        return [
            opened,
            *([Subscribed(session, granted)] if granted else []),
            SessionClosed(session, "salvage", generation),
        ]
