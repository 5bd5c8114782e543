"""Finds what the sessions of a damaged log have lost, for ``eventstore.copies.damaged_log``."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.format import Event, MessageDropped, WillCancelled, to_runs
from projections.replay.replay import fold
from projections.state import LOST, NodeState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from eventstore.format import Position, Record
    from projections.state import SessionState


class SalvageNeeds:
    """The messages that the sessions of a log need, found by the fold of the broker."""

    def __init__(self, begin: int) -> None:
        """Begin with record ``begin``."""
        self._state = NodeState(begin)

    def take(self, record: Record) -> None:
        """Fold the next record; raises CorruptLog and UnreadableEvent."""
        fold(self._state, record)

    def doubtful(self) -> list[str]:
        """Return the sessions whose state may depend on lost records."""
        return sorted(self._state.doubtful)

    def drop_events(self, is_lost: Callable[[Position], bool]) -> list[Event]:
        """Return the events that remove lost messages from the sessions that need them."""
        found: list[Event] = []
        for name in sorted(self._state.sessions.names()):
            state = self._state.sessions.peek(name)
            if state is not None:
                found += _drop_events(state, is_lost)
        return found


def _drop_events(state: SessionState, is_lost: Callable[[Position], bool]) -> Iterator[Event]:
    name = state.session
    if state.will is not None and is_lost(state.will.ref):
        yield WillCancelled(name)
    inbound = sorted(ref for ref in state.inbound.values() if is_lost(ref))
    if inbound:
        yield MessageDropped(name, LOST, len(inbound), to_runs(inbound))
    for held in state.subscriptions.values():
        queue = held.queue
        waiting = [] if queue is None else list(queue.refs())
        queued = [ref for ref in waiting if is_lost(ref)]
        sent = [
            one.ref
            for one in state.inflight.values()
            if one.subscription is held and is_lost(one.ref)
        ]
        refs = sorted({*queued, *sent})
        if refs:
            # How large each of them was is not known.
            size = held.queued_bytes * len(queued) // len(waiting) if queued else -1
            yield MessageDropped(name, LOST, len(refs), to_runs(refs), held.filter, size)
