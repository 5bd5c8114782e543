"""The fold of events of several sessions, as the broker applies it when it decides them.

In a log that is read back, events of single sessions replace them; both folds yield the same state
(``tests/projections/test_turn_fold.py``).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from eventstore.format.positions import Position, from_runs
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished, TurnReleased
from eventstore.format.turn_expansion import indices
from projections.state.session import InFlight, SessionState, complete
from projections.state.session_table import SessionTable

Touched = dict[str, "Position"]


def states_of(
    table: SessionTable, names: Sequence[str], touched: Touched | None
) -> list[SessionState]:
    """Return the states of sessions; mark them as changed, with their saved version."""
    live = table.live
    states: list[SessionState] = []
    for name in names:
        state = live.get(name) or table.get(name)
        if state is None:
            raise LookupError(f"there is no session {name!r}")
        if touched is not None and name not in touched:
            touched[name] = state.saved
        states.append(state)
    return states


def _published(
    states: Sequence[SessionState], event: TurnPublished, at: Position, _ms: int
) -> None:
    """Apply publications: QoS 2 messages wait for their PUBREL."""
    if event.qos == 2:
        by = indices(event.by, event.sessions, event.count)
        for ref, (index, pid) in enumerate(zip(by, event.pids, strict=True), at):
            states[index].own_inbound()[pid] = ref


def _delivered(
    states: Sequence[SessionState], event: TurnDelivered, _at: Position, time_ms: int
) -> None:
    """Apply deliveries: PUBACK or PUBREC is awaited."""
    qos, pids = event.qos, event.pids
    held = [
        state.subscription(topic_filter)
        for state, topic_filter in zip(states, event.filters, strict=True)
    ]
    by = indices(event.by, event.sessions, len(pids))
    for index, pid, ref in zip(by, pids, from_runs(event.refs), strict=True):
        state, subscription = states[index], held[index]
        state.inflight[pid] = InFlight(ref, qos, subscription, time_ms)
        state.last_pid = pid
        subscription.outstanding += 1


def _acked(states: Sequence[SessionState], event: TurnAcked, _at: Position, time_ms: int) -> None:
    """Apply acknowledgements of one kind."""
    pids, kind = event.pids, event.kind
    by = indices(event.by, event.sessions, len(pids))
    if kind == "Received":
        for index, pid in zip(by, pids, strict=True):
            state = states[index]
            sent = state.inflight.pop(pid, None)
            if sent is not None:
                state.own_releasing()[pid] = sent._replace(sent_ms=time_ms)
        return
    of_acked = kind == "Acked"
    for index, pid in zip(by, pids, strict=True):
        state = states[index]
        complete(state, state.inflight if of_acked else state.releasing, (pid,))


def _released(states: Sequence[SessionState], event: TurnReleased, _at: Position, _ms: int) -> None:
    """Apply releases: the messages took effect."""
    by = indices(event.by, event.sessions, len(event.pids))
    for index, pid in zip(by, event.pids, strict=True):
        states[index].inbound.pop(pid, None)


FOLDS: Final[Mapping[type, Callable[[list[SessionState], Any, Position, int], None]]] = {
    TurnAcked: _acked,
    TurnDelivered: _delivered,
    TurnPublished: _published,
    TurnReleased: _released,
}
"""Type of event -> its fold: states of its sessions, event, position, and time in milliseconds."""
