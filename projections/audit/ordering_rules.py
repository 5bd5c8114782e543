"""The order in which the client of a session gets messages, and that those that wait are sent."""

from collections import deque
from collections.abc import Callable, Hashable
from typing import Final

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    Acked,
    Assigned,
    Completed,
    Delivered,
    Expired,
    MessageDropped,
    Received,
    Redelivered,
    Refused,
    Returned,
    SessionClosed,
    SessionOpened,
    WillArmed,
)
from eventstore.format.node_events import RetainedSnapshot, SessionSnapshot
from eventstore.format.positions import INDEX_BITS, Position, from_runs
from projections.audit.log_outline import LogOutline
from projections.audit.rule_table import Rule, Violation
from projections.state.session import SessionState, SubscriptionState
from protocol.mqtt.shared_filters import SHARE

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
_WITH_OPENING: Final = (WillArmed, SessionSnapshot, RetainedSnapshot)
"""Events permitted between the beginning of a connection and the PUBRELs that are sent again."""


class QueueProgress:
    """Follows the queue of one session; ``cases`` is called each time that it could be sent.

    A queue may stop while the client's window is full, and while the client does not read. The log
    does not record the latter, but a client that reads nothing is disconnected after
    ``slow_reader_time``. A queue that stops for longer, with an open window, was forgotten,
    whatever the client acknowledges meanwhile. So was one that other messages pass: what is sent at
    once shows that the client reads.
    """

    __slots__ = ("_at", "_cases", "_outline", "_passed", "_since_ms", "_violations")

    def __init__(
        self,
        report: Callable[[Violation], object],
        cases: Callable[[str], object],
        outline: LogOutline,
    ) -> None:
        self._violations = report
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
                self._violations(Violation(Rule.PROGRESS, self._at, what))
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
            self._violations(Violation(Rule.PROGRESS, self._at, f"{what}its window open"))
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


class TopicOrder:
    """Checks that messages of one stream are delivered in the order in which they took effect.

    A stream is identified by its key. It is remembered only while a message of it waits, and in the
    turn in which one was delivered: if nothing older can follow, no later message is too early.
    """

    __slots__ = ("_last", "_recent", "_waiting")

    def __init__(self) -> None:
        self._last: dict[Hashable, Position] = {}
        """Stream -> the position at which its latest delivered message took effect."""
        self._waiting: dict[Hashable, int] = {}
        """Stream -> the number of its queued messages."""
        self._recent: list[Hashable] = []
        """Streams that may have to be forgotten when the turn ends."""

    def __len__(self) -> int:
        """Return the number of streams that are remembered."""
        return len(self._last.keys() | self._waiting.keys())

    def queued(self, stream: Hashable) -> None:
        """Record that a message waits."""
        self._waiting[stream] = self._waiting.get(stream, 0) + 1

    def left(self, stream: Hashable) -> None:
        """Record that a message left the queue."""
        count = self._waiting.pop(stream, 0) - 1
        if count > 0:
            self._waiting[stream] = count
        else:
            self._recent.append(stream)

    def delivered(self, stream: Hashable, effect: Position) -> bool:
        """Record a first delivery; return whether it is in order."""
        newest = self._last.get(stream)
        if newest is not None and newest > effect:
            return False
        self._last[stream] = effect
        self._recent.append(stream)
        return True

    def end_turn(self) -> None:
        """Forget streams without older messages to come: messages of later turns are newer."""
        for stream in self._recent:
            if stream not in self._waiting:
                self._last.pop(stream, None)
        self._recent.clear()

    def clear(self) -> None:
        """Forget everything: the session has ended."""
        self._last.clear()
        self._waiting.clear()
        self._recent.clear()


class RedeliveryOrder:
    """The packets to send again after a session was resumed, before anything new [MQTT-4.4.0-1].

    PUBREL packets come first, in the order of the PUBRECs, then PUBLISH packets in the order of
    their first transmission [MQTT-4.6.0-1].
    """

    __slots__ = ("_all", "_left", "_opened", "_order", "releasing")

    def __init__(self, state: SessionState, opened: Position = 0) -> None:
        self._opened = opened
        self.releasing = set(state.releasing)
        """Packets whose PUBREL must be sent again before anything else."""
        self._order = deque((*state.releasing, *state.inflight))
        self._left = set(self._order)
        self._all = frozenset(self._order)

    def again(self, event: Redelivered, at: Position) -> list[Violation]:
        """Process packets sent again because the session was resumed; return violations."""
        violations: list[Violation] = []
        self.releasing.difference_update(from_runs(event.pids))
        for number, pid in enumerate(from_runs(event.pids)):
            if pid not in self._all:
                what = (
                    f"packet {pid} was sent again as resumed, but first sent after the resumption"
                )
                violations.append(Violation(Rule.ACKNOWLEDGEMENT, at + number, what))
            if pid not in self._left:
                continue  # a second repetition is harmless; ``checks`` reports unknown packets
            first = self._first()
            self._left.discard(pid)
            if pid != first:
                what = f"packet {pid} was sent again before packet {first}"
                violations.append(Violation(Rule.ORDER, at + number, what))
        return violations

    def released(self, event: Event | None, at: Position) -> list[Violation]:
        """Process any event, None: the end of the log; return a violation if PUBRELs are missing.

        They are sent in the turn in which the connection begins. At the end of the log, ``at`` is
        where a turn begins whose rest is not known.
        """
        if not self.releasing or isinstance(event, _WITH_OPENING):
            return []
        if isinstance(event, Redelivered) and event.cause == "resumed":
            return []
        packets, more = f"packet {min(self.releasing)}", len(self.releasing) - 1
        self.releasing.clear()
        if isinstance(event, SessionClosed) and event.reason == "session_failed":
            return []
        if event is None and self._opened >= at:
            return []
        packets += f" and {more} more" if more else ""
        what = f"the PUBREL of {packets} was not sent again when its client reconnected"
        return [Violation(Rule.ORDER, at if event is not None else self._opened, what)]

    def answered(self, event: Acked | Received | Refused | Completed | Returned) -> None:
        """Record answers, or another end: these packets need not be sent again."""
        self._left.difference_update(from_runs(event.pids))

    def overtaken(self, at: Position) -> list[Violation]:
        """Process a new message; return a violation if older packets must be sent again first."""
        if not self._left:
            return []
        what = f"a message was sent before packet {self._first()} was sent again"
        self._left.clear()
        return [Violation(Rule.ORDER, at, what)]

    def __bool__(self) -> bool:
        """Return whether packets still have to be sent again."""
        return bool(self._left)

    def _first(self) -> int:
        while self._order[0] not in self._left:
            self._order.popleft()
        return self._order[0]
