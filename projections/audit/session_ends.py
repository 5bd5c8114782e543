"""Checks that a session and its connections end for the recorded reason: rule ``session``."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from eventstore.display import escaped
from eventstore.format.events import SessionClosed, SessionExpired
from eventstore.format.node_events import OperatorActed
from eventstore.format.positions import Position
from eventstore.reasons import BROKER_ENDS, CLOSE_REASONS, EXPIRY_REASONS
from projections.audit.log_outline import LogOutline
from projections.audit.rule_table import Rule, Violation
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from projections.state.session import SessionState

_LATE_MS: Final = 7_200_000
"""Milliseconds after its expiry from which an offline session that still exists is overdue."""
_LEVEL_5: Final = 5
_KICK, _REMOVE = "kick", "remove_session"
_SHOWN: Final = 60


class SessionEnds:
    """Follows the ends of one session."""

    __slots__ = ("_acted", "_found", "_outline", "_required")

    def __init__(self, found: Callable[[Violation], object], outline: LogOutline) -> None:
        self._found = found
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
        self._found(Violation(Rule.SESSION, at, what))
