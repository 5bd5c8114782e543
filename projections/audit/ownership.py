"""Checks that a client's events belong to its connection, and that it has only one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from eventstore.format.events import (
    LOG_SESSION,
    NATS_SESSION,
    Acked,
    Completed,
    Delivered,
    Expired,
    InboundReplaced,
    MessageDropped,
    MessagePublished,
    Received,
    Redelivered,
    Refused,
    Released,
    ReplayOpened,
    ReplayReached,
    Returned,
    SessionClosed,
    SessionOpened,
    SessionTakenOver,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
    WillArmed,
)
from projections.audit.rule_table import Rule, Violation

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.format.event_parsing import Event
    from eventstore.format.positions import Position
    from projections.audit.log_outline import LogOutline
    from projections.state.session import SessionState

_OF_CONNECTIONS: Final = frozenset(
    {
        Acked, Completed, Delivered, InboundReplaced, MessagePublished, Received, Redelivered,
        Refused, Released, ReplayOpened, Returned, Subscribed, SubscriptionDenied, Unsubscribed,
        WillArmed,
    }
)  # fmt: skip
"""Events, other than those of wills, that require a connection of the session."""
_OF_SESSIONS: Final = frozenset({Expired, MessageDropped, ReplayReached, SessionTakenOver})
"""Events that require an existing session."""
_SERVED: Final = _OF_CONNECTIONS - {Returned}
"""Events that cannot happen to a connection that a stopped broker left open."""
_CHANGES: Final = frozenset({SessionOpened, SessionClosed, SessionTakenOver})


class OwnershipAudit:
    """Follows the connections of one session."""

    __slots__ = (
        "_bridge", "_found", "_gone", "_of_node", "_opened", "_outline", "_replaced", "_stopped",
        "_taken",
    )  # fmt: skip

    def __init__(
        self, session: str, found: Callable[[Violation], object], outline: LogOutline
    ) -> None:
        self._bridge = session == NATS_SESSION
        """Whether this is the session of the bridge, whose drops need no session."""
        self._of_node = self._bridge or session.startswith(LOG_SESSION)
        """Whether the broker opens and closes this session for its own use."""
        self._found = found
        self._outline = outline
        self._opened: Position = -1
        """Position at which the connection began; -1: not known."""
        self._gone: Position = -1
        """The turn in which the session last ended."""
        self._taken: Position = -1
        """Position of a takeover whose old connection has not ended yet."""
        self._replaced: Position = -1
        """Position at which a connection ended in this turn because another one took over."""
        self._stopped: Position = -1
        """Position at which the last connection ended because the broker stopped."""

    def take(self, event: Event, state: SessionState | None, at: Position, turn: Position) -> None:
        """Check the session's next event; ``state`` is the state before it."""
        kind = type(event)
        if kind in _CHANGES:
            self._change(event, state, at)
        elif kind in _OF_CONNECTIONS or (kind is ReplayReached and event.sent):  # type: ignore[union-attr]
            will = kind is MessagePublished and event.will  # type: ignore[union-attr]
            if not will and not (state is not None and state.connected):
                self._report(at, f"{kind.__name__} without a connection")
            elif kind in _SERVED and not will and self._restarted(at):
                self._report(at, f"{kind.__name__} on a connection that ended with its broker")
        elif kind in _OF_SESSIONS and state is None and turn != self._gone and not self._bridge:
            self._report(at, f"{kind.__name__} without a session")

    def ended(self, turn: Position) -> None:
        """Record that the session ended in a turn."""
        self._gone = turn

    def end_turn(self) -> None:
        """Report a takeover without the end of the old connection, or without a new connection."""
        if self._taken >= 0:
            self._report(self._taken, "a connection was taken over, but it did not end")
            self._taken = -1
        if self._replaced >= 0:
            self._report(self._replaced, "a connection was taken over, but no new one began")
            self._replaced = -1

    def _restarted(self, at: Position) -> bool:
        return self._opened >= 0 and self._outline.stopped_between(self._opened, at)

    def _change(self, event: Any, state: SessionState | None, at: Position) -> None:
        """Check the beginning or end of a connection."""
        if isinstance(event, SessionOpened):
            self._begin(event, state, at)
            return
        if state is None:
            if isinstance(event, SessionTakenOver):
                self._report(at, "SessionTakenOver without a session")
            return
        if not state.connected:
            self._report(at, "a connection ended that did not exist")
        elif event.generation != state.generation:
            what = (
                f"connection {event.generation} ended, but {state.generation} was the current one"
            )
            self._report(at, what)
        if isinstance(event, SessionTakenOver):
            if self._taken >= 0:
                self._report(at, "a connection was taken over twice")
            self._taken = at
            return
        if event.reason == "taken_over" and self._taken < 0:
            self._report(at, "a connection ended as taken over, but no other one took it over")
        self._taken = -1
        if event.reason == "taken_over":
            self._replaced = at
        elif event.reason == "broker_stopped" and not self._of_node:
            self._stopped = at
        if event.reason == "broker_restarted" and self._opened >= 0 and not self._restarted(at):
            self._report(
                at, "a connection ended with its broker, but the broker did not start again"
            )
        self._opened = -1

    def _begin(self, event: SessionOpened, state: SessionState | None, at: Position) -> None:
        """Check the beginning of a connection."""
        if state is not None and state.connected:
            what = "a connection was accepted while the one before it was not closed"
            self._report(at, what)
        if state is not None and event.generation != state.generation + 1:
            what = f"connection {event.generation} follows connection {state.generation}"
            self._report(at, what)
        if self._stopped >= 0 and not self._outline.stopped_between(self._stopped, at):
            what = "a connection ended because the broker stopped, but it did not stop"
            self._report(self._stopped, what)
        self._opened, self._replaced, self._stopped = at, -1, -1

    def _report(self, at: Position, what: str) -> None:
        self._found(Violation(Rule.OWNERSHIP, at, what))
