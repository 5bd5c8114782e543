"""Checks that messages waiting for a connected client are sent: rule ``progress``.

A queue may stop while the client's window is full, and while the client does not read. The log does
not record the latter, but a client that reads nothing is disconnected after ``slow_reader_time``. A
queue that stops for longer, with an open window, was forgotten, whatever the client acknowledges
meanwhile. So was one that other messages pass: what is sent at once shows that the client reads.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.format.events import Assigned, Delivered, Expired, MessageDropped, SessionOpened
from eventstore.format.positions import INDEX_BITS
from projections.audit.rule_table import Rule, Violation
from protocol.mqtt.shared_filters import SHARE

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.format.event_parsing import Event
    from eventstore.format.positions import Position
    from projections.audit.log_outline import LogOutline
    from projections.state.session import SessionState, SubscriptionState

_GRACE_MS: Final = 60_000
"""Milliseconds beyond ``slow_reader_time`` that a client may take to read its packets."""
_PASSED_AFTER_MS: Final = 1000
"""Milliseconds after which messages that pass a queue count: the broker goes on with a queue in
another turn than that in which the client's connection has room again."""
_PASSES: Final = 2
"""Turns in which messages pass a queue until it counts as forgotten."""
_PACKET_IDS: Final = 65_535
_LEAVES: Final = (Delivered, MessageDropped, Expired, Assigned)
"""Events with which messages leave a queue."""


class QueueProgress:
    """Follows the queue of one session; ``cases`` is called each time that it could be sent."""

    __slots__ = ("_at", "_cases", "_found", "_outline", "_passed", "_since_ms")

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
        self._passed: set[int] = set()
        """Records in which messages were sent past the queue."""

    def before(self, at: Position, ms: int) -> None:
        """Check the queue at the time of the session's next event, before the event is folded."""
        if self._at >= 0:
            self._judge(self._outline.until(self._at, at, ms))

    def after(self, state: SessionState | None, at: Position, ms: int, event: Event) -> None:
        """Check the state after an event."""
        if state is None or not state.queued or not state.connected or not self._open(state, at):
            self._at = -1
        elif self._at < 0 or (
            isinstance(event, (SessionOpened, *_LEAVES)) and getattr(event, "queued", 0) >= 0
        ):
            self._at, self._since_ms = at, ms
            self._passed.clear()
            self._cases(Rule.PROGRESS)
        elif type(event) is Delivered and ms > self._since_ms + _PASSED_AFTER_MS:
            self._passed.add(at >> INDEX_BITS)
            if len(self._passed) >= _PASSES:
                what = "messages waited while others were sent to the client, with its window open"
                self._found(Violation(Rule.PROGRESS, self._at, what))
                self._at = -1

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
