"""Checks that messages waiting for a connected client are sent: rule ``progress``.

A queue may stop while the client's window is full, and while the client does not read. The log does
not record the latter, but a client that reads nothing is disconnected after ``slow_reader_time``. A
queue that stops for much longer, with an open window, was forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.format import MessagePublished, Queued, Released, Subscribed, Unsubscribed
from projections.audit.rules.rule_table import Rule, Violation
from protocol.mqtt5 import SHARE

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.format import Position
    from projections.audit.rules.log_outline import LogOutline
    from projections.state import SessionState, SubscriptionState

_GRACE_MS: Final = 600_000
"""Milliseconds beyond ``slow_reader_time`` that a client may take to read its packets."""
_PACKET_IDS: Final = 65_535
_NO_PROGRESS: Final = frozenset({Queued, Subscribed, Unsubscribed, MessagePublished, Released})
"""Events that may happen to a session while its queue is stopped."""


class QueueProgress:
    """Follows the queue of one session; ``cases`` is called each time that it could be sent."""

    __slots__ = ("_at", "_cases", "_found", "_outline", "_since_ms")

    def __init__(
        self,
        found: Callable[[Violation], object],
        cases: Callable[[str], object],
        outline: LogOutline,
    ) -> None:
        self._found = found
        self._cases = cases
        self._outline = outline
        self._at: Position = -1
        """Position since which the queue could be sent but is not; -1: it cannot be sent."""
        self._since_ms = 0

    def before(self, at: Position, ms: int) -> None:
        """Check the queue at the time of the session's next event, before the event is folded."""
        if self._at >= 0:
            self._judge(self._outline.until(self._at, at, ms))

    def after(self, state: SessionState | None, at: Position, ms: int, kind: type) -> None:
        """Check the state after an event of some type."""
        if state is None or not state.queued or not state.connected or not self._open(state, at):
            self._at = -1
        elif self._at < 0 or kind not in _NO_PROGRESS:
            self._at, self._since_ms = at, ms
            self._cases(Rule.PROGRESS)

    def finish(self) -> None:
        """Check the messages that wait at the end of the log."""
        if self._at >= 0:
            self._judge(self._outline.until(self._at, 1 << 62, self._outline.ends_ms))

    def _judge(self, until_ms: int) -> None:
        limits = self._outline.limits_at(self._at)
        reader_time = limits.slow_reader_time if limits is not None else None
        stood_ms = until_ms - self._since_ms
        if reader_time and stood_ms > reader_time * 1000 + _GRACE_MS:
            what = f"messages waited for {stood_ms // 1000} s with the client connected and "
            self._found(Violation(Rule.PROGRESS, self._at, f"{what}its window open"))
            self._at = -1

    def _open(self, state: SessionState, at: Position) -> bool:
        """Return whether a message of the next queue may be sent."""
        limits = self._outline.limits_at(at)
        if limits is None or limits.max_ack_pending is None or state.session.startswith(SHARE):
            return False
        held: SubscriptionState | None = next(iter(state.waiting.values()), None)
        unfinished = len(state.inflight) + len(state.releasing)
        return (
            held is not None
            and held.outstanding < limits.max_ack_pending
            and unfinished < min(_PACKET_IDS, state.receive_maximum)
        )
