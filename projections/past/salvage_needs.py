"""Finds what the sessions of a damaged log have lost, for ``eventstore.reading.damaged_log``."""

from collections.abc import Callable, Iterator, Mapping

from eventstore.format.event_parsing import Event
from eventstore.format.events import MessageDropped, WillCancelled
from eventstore.format.positions import Position, to_runs
from eventstore.format.records import Record
from projections.past.replay import fold
from projections.state.node_state import NodeState
from projections.state.session import LOST, SessionState


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

    def neighbours(self, is_lost: Callable[[Position], bool]) -> set[Position]:
        """Return the messages that wait in a queue together with lost ones."""
        neighbours: set[Position] = set()
        for state in self._states():
            for held in state.subscriptions.values():
                waiting = [] if held.queue is None else list(held.queue.refs())
                if any(map(is_lost, waiting)):
                    neighbours.update(ref for ref in waiting if not is_lost(ref))
        return neighbours

    def drop_events(
        self, is_lost: Callable[[Position], bool], sizes: Mapping[Position, int]
    ) -> list[Event]:
        """Return the events that remove lost messages from the sessions that need them.

        ``sizes`` are the payload bytes of their neighbours.
        """
        return [event for state in self._states() for event in _drop_events(state, is_lost, sizes)]

    def _states(self) -> Iterator[SessionState]:
        for name in sorted(self._state.sessions.names()):
            state = self._state.sessions.peek(name)
            if state is not None:
                yield state


def _drop_events(
    state: SessionState, is_lost: Callable[[Position], bool], sizes: Mapping[Position, int]
) -> Iterator[Event]:
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
            delivery.ref
            for delivery in state.inflight.values()
            if delivery.subscription is held and is_lost(delivery.ref)
        ]
        refs = sorted({*queued, *sent})
        if refs:
            kept_bytes = sum(sizes.get(ref, 0) for ref in waiting if not is_lost(ref))
            size = max(0, held.queued_bytes - kept_bytes) if queued else -1
            yield MessageDropped(name, LOST, len(refs), to_runs(refs), held.filter, size)
