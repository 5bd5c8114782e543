"""Comparable summaries of a node's state, for ``foldmq diff``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from eventstore.format.positions import Position
    from projections.past.replay import Origins
    from projections.state.node_state import NodeState
    from projections.state.session import SessionState


class Granted(NamedTuple):
    """The values that the broker granted for a subscription."""

    qos: int
    options: int = 0
    """Subscription options of MQTT 5, see ``Subscribed``."""
    identifier: int = 0
    """Subscription identifier of MQTT 5; 0: none."""


class WillFacts(NamedTuple):
    """The compared facts of a will."""

    topic: str
    qos: int
    retain: bool
    delay: int
    """Delay in seconds after the end of the connection."""


@dataclass(frozen=True, slots=True)
class SessionFacts:
    """The compared facts of a session."""

    connected: bool
    subscriptions: dict[str, Granted]
    """By topic filter."""
    in_flight: frozenset[tuple[int, Position]]
    """Packet identifier and message of each incomplete delivery."""
    queue: tuple[int, int, dict[str, tuple[Position, Position]]]
    """Messages, bytes, and the first and last queued message of each filter."""
    inbound: frozenset[int]
    will: WillFacts | None
    expiry: int | None = None
    """Session expiry interval in seconds; None: the setting of the broker."""


@dataclass(frozen=True, slots=True)
class StateFacts:
    """The compared facts of a node."""

    sessions: dict[str, SessionFacts]
    retained: dict[str, tuple[Position, int]]
    """Position and size of the retained message of each topic."""
    entries: int


def state_facts(state: NodeState, session: str | None, origins: Origins) -> StateFacts:
    """Return the compared facts of a state, or of one session only if ``session`` is set.

    A retained message that a checkpoint repeated counts as the same message.
    """
    chosen = {
        name: session_facts(held)
        for name, held in state.sessions.items()
        if session is None or name == session
    }
    retained = {}
    if session is None:
        retained = {
            message.topic: (origins.of(message.ref), len(message.payload))
            for message in state.retained.all()
        }
    return StateFacts(chosen, retained, state.entries)


def session_facts(state: SessionState) -> SessionFacts:
    """Return the compared facts of a session."""
    will = state.will
    sent = [(pid, one.ref) for pid, one in state.inflight.items()]
    sent += [(pid, one.ref) for pid, one in state.releasing.items()]
    ends = {
        one.filter: ends
        for one in state.subscriptions.values()
        if one.queue is not None and (ends := one.queue.ends()) is not None
    }
    return SessionFacts(
        state.connected,
        {one.filter: Granted(one.qos, one.options, one.identifier) for one in state.active()},
        frozenset(sent),
        (state.queued, state.queued_bytes, ends),
        frozenset(state.inbound),
        None if will is None else WillFacts(will.topic, will.qos, will.retain, will.delay),
        state.expiry,
    )
