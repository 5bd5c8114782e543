"""Checks that a client's events belong to its one connection, and how it and its session end."""

from collections.abc import Callable
from typing import Any, Final

from eventstore.display import escaped
from eventstore.format.event_parsing import Event
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
    SessionExpired,
    SessionOpened,
    SessionTakenOver,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
    WillArmed,
)
from eventstore.format.node_events import OperatorActed
from eventstore.format.positions import Position
from eventstore.reasons import BROKER_ENDS, CLOSE_REASONS, EXPIRY_REASONS
from projections.audit.log_outline import LogOutline
from projections.audit.rule_table import Rule, Violation
from projections.state.session import SessionState
from protocol.mqtt.shared_filters import SHARE

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
_AT_START: Final = frozenset({"broker_restarted", "session_failed"})
"""Reasons with which a connection ends that a broker left open; the second one if its actor failed
then."""


class OwnershipAudit:
    """Follows the connections of one session."""

    def __init__(
        self, session: str, report: Callable[[Violation], object], outline: LogOutline
    ) -> None:
        self._bridge = session == NATS_SESSION
        """Whether this is the session of the bridge, whose drops need no session."""
        self._of_node = self._bridge or session.startswith(LOG_SESSION)
        """Whether the broker opens and closes this session for its own use."""
        self._violations = report
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
        elif event.reason not in _AT_START and not self._of_node and self._restarted(at):
            self._report(at, f"a connection ended as {event.reason!r:.40}, after its broker ended")
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
        self._violations(Violation(Rule.OWNERSHIP, at, what))


_LATE_MS: Final = 7_200_000
"""Milliseconds after its expiry from which an offline session that still exists is overdue."""
_LEVEL_5: Final = 5
_KICK, _REMOVE = "kick", "remove_session"
_SHOWN: Final = 60


class SessionEnds:
    """Follows the ends of one session."""

    __slots__ = ("_acted", "_outline", "_required", "_violations")

    def __init__(self, report: Callable[[Violation], object], outline: LogOutline) -> None:
        self._violations = report
        self._outline = outline
        self._acted: str = ""
        """The operator's action on the session in this turn."""
        self._required: Position = -1
        """Position of an operator's action whose end has not followed in this turn; -1: none."""

    def end_turn(self) -> None:
        """Report a session or connection that an operator ended but that did not end."""
        if self._required >= 0:
            self._report(self._required, f"an operator's {self._acted} did not end anything")
        self._acted, self._required = "", -1

    def acted(self, event: OperatorActed, at: Position, *, known: bool) -> None:
        """Record an operator's action on the session; ``known``: its end will be recorded here.

        False if the log was cut and the session is not known yet.
        """
        if event.action in (_KICK, _REMOVE):
            self._acted, self._required = event.action, at if known else -1
            if event.target != event.session:
                self._report(at, f"an operator's {event.action} is about another session")
        elif event.action == "clear_retained":
            self._report(at, "an operator's clear_retained is about a session")
        elif event.action != "restart":
            shown = escaped(event.action, _SHOWN) or "not recorded"
            self._report(at, f"unknown action of an operator: {shown}")

    def closed(self, state: SessionState | None, event: SessionClosed, at: Position) -> None:
        """Check the end of a connection."""
        if event.reason not in CLOSE_REASONS:
            self._unknown(event.reason, at)
        if event.reason == "kicked":
            self._by_operator("was disconnected", at)
        shared = event.session.startswith(SHARE)
        if shared != (event.reason == "shared"):
            self._report(at, f"a connection ended as {event.reason}, which is impossible for it")
        if event.grace and event.reason not in BROKER_ENDS:
            what = f"a will waits for its client although the connection was {event.reason}"
            self._report(at, what)
        if state is not None and state.level < _LEVEL_5 and (event.code or event.expiry):
            self._report(at, "a connection ended with a reason code, which only MQTT 5 has")

    def expired(
        self, state: SessionState | None, event: SessionExpired, at: Position, ms: int
    ) -> None:
        """Check the end of a session."""
        shared = event.session.startswith(SHARE)
        if event.reason not in EXPIRY_REASONS:
            self._unknown(event.reason, at)
        elif event.reason == "removed":
            self._by_operator("was removed", at)
        elif shared != (event.reason == "no_members"):
            self._report(at, f"a session ended as {event.reason}, which is impossible for it")
        elif event.reason == "expired" and state is not None and not state.clean:
            due_ms = self._due_ms(state, at)
            if due_ms == 0:
                self._report(at, "the session expired, but it never does")
            elif due_ms is not None and ms < due_ms:
                early = (due_ms - ms + 999) // 1000
                self._report(at, f"the session expired {early} s before its time")

    def finish(self, state: SessionState | None) -> None:
        """Check whether the session should have ended before the end of the log."""
        self.end_turn()
        outline = self._outline
        if state is None or state.connected or not outline.runs or state.session.startswith(SHARE):
            return
        if state.clean:  # it ends with its will
            return
        due_ms = self._due_ms(state, 1 << 62)
        if due_ms and outline.ends_ms > max(due_ms, outline.settled_since()) + _LATE_MS:
            late = (outline.ends_ms - due_ms) // 1000
            self._report(
                outline.limits[-1].at, f"the session still exists {late} s after it expired"
            )

    def _due_ms(self, state: SessionState, at: Position) -> int | None:
        """Return when an offline session expires; 0: never, None: not known."""
        limits = self._outline.limits_at(at)
        seconds = limits.expiry_of(state.expiry) if limits is not None else None
        if seconds is None:
            return None
        return state.closed_ms + int(seconds * 1000) if seconds else 0

    def _by_operator(self, what: str, at: Position) -> None:
        if not self._acted:
            self._report(at, f"the client {what} by an operator, but no such action is recorded")
        self._required = -1

    def _unknown(self, reason: str, at: Position) -> None:
        shown = escaped(reason, _SHOWN) or "not recorded"
        self._report(at, f"it ended for an unknown reason: {shown}")

    def _report(self, at: Position, what: str) -> None:
        self._violations(Violation(Rule.SESSION, at, what))
