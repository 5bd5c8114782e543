"""Whether the log of one session keeps what MQTT and foldmq promise its client.

Whoever has sorted the events of a log by session gives them to :class:`SessionAudit`, in order,
and between them the messages that the session had to get. What is wrong comes out as violations,
each with the position that shows it. It is pure, so that an auditor need not trust the broker:
only the fold, which says what the events mean, is the broker's own.
"""

from __future__ import annotations

from array import array
from itertools import islice
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

import orjson

from eventstore.events import (
    Acked,
    Completed,
    Delivered,
    Event,
    MessageDropped,
    MessagePublished,
    Queued,
    Received,
    Redelivered,
    Released,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    SessionSnapshot,
)
from eventstore.positions import INDEX_BITS, Position, format_position, from_runs
from projections.alone import SessionFold
from projections.snapshot import Part, encode
from projections.waiting import FLAG_BITS, RETAIN_FLAG
from protocol.topics import matches

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from projections.session import SessionState, SubscriptionState

PACKET_ID_REUSE: Final = "packet_id_reuse"
"""A packet identifier was given to a message while another one had it, or is none."""
UNDELIVERED: Final = "undelivered"
"""A message that matched was neither delivered, nor queued, nor dropped with a reason."""
UNEXPECTED: Final = "unexpected_delivery"
"""A message was delivered that matched no subscription, or had been delivered before."""
NO_SUBSCRIPTION: Final = "no_subscription"
"""A delivery names a subscription that there is not, or whose filter does not match."""
ORDER: Final = "order"
"""Messages of one topic were not delivered in the order in which they took effect."""
QUEUE: Final = "queue"
"""What left the queue was not what stood at its head."""
ACKNOWLEDGEMENT: Final = "acknowledgement"
"""Something was acknowledged, released or sent again that was not on its way."""
SESSION: Final = "session"
"""A session was resumed that there was not, or thrown away though its client wanted it kept."""
CHECKPOINT: Final = "checkpoint"
"""A checkpoint repeats a state that is not the one the log tells."""
EVENT: Final = "event"
"""An event does not fit what was before; what follows is not looked at."""

RULES: Final = (
    PACKET_ID_REUSE,
    UNDELIVERED,
    UNEXPECTED,
    NO_SUBSCRIPTION,
    ORDER,
    QUEUE,
    ACKNOWLEDGEMENT,
    SESSION,
    CHECKPOINT,
    EVENT,
)

BUCKETS: Final = 40
"""Latencies are counted by their bit length in milliseconds: 0, 1, 2-3, 4-7, ..."""

_MOST_PID: Final = 65_535
_MISFITS = (ValueError, KeyError, IndexError, TypeError, AttributeError)
_MATCHES_KEPT: Final = 4096


class Violation(NamedTuple):
    """A promise that was not kept."""

    rule: str
    at: Position
    what: str


class _Message(NamedTuple):
    """A message that the session is to get."""

    at: Position
    """Where it took effect."""
    topic: str
    time_ms: int


class SessionAudit:
    """Folds one session and checks it on the way.

    ``whole`` is as for ``SessionFold``; what the log does not tell whole is not checked. ``begin``
    is the first position of a log that was cut: of messages before it nothing is known. ``most``
    bounds the violations that are kept; ``found`` counts all.
    """

    def __init__(
        self, session: str, whole: Position = 0, begin: Position = 0, most: int = 1000
    ) -> None:
        self.session = session
        self.fold = SessionFold(session, whole)
        self.violations: list[Violation] = []
        self.found = 0
        self.latencies: dict[int, array[int]] = {}
        """QoS of the delivery -> acknowledged deliveries by latency, see ``BUCKETS``."""
        self.slowest_ms: dict[int, int] = {}
        """QoS of the delivery -> the longest latency in milliseconds."""
        self._begin = begin
        self._most = most
        self._known = not whole
        """The state is that of the whole log."""
        self._broken = False
        self._expected: dict[Position, _Message] = {}
        """Messages that took effect and of which the session's events do not tell yet."""
        self._open: dict[Position, _Message] = {}
        """Messages in its queue or on their way to its client."""
        self._last: dict[str, Position] = {}
        """Where the message of a topic that was delivered last took effect."""
        self._matches: dict[tuple[str, str], bool] = {}
        self._parts: list[Part] = []
        self._turn: Position = 0
        """Where the turn of the event that is looked at begins."""

    def expect(self, at: Position, ref: Position, topic: str, time_ms: int) -> None:
        """Take a message that took effect at a position and matches a subscription of QoS 1 or 2.

        ``ref`` is the position of its publication, ``time_ms`` when it took effect. It comes before
        the session's own events at that position.
        """
        if self._known and self.fold.state is not None:
            self._expected[ref] = _Message(at, topic, time_ms)

    def take(
        self,
        event: Event,
        at: Position,
        time_ms: int,
        payload: bytes | None = None,
        part: int = 0,
    ) -> None:
        """Take the session's next event.

        ``payload`` is as for ``SessionFold``, ``part`` that of the event's record in its turn.
        """
        if self._broken:
            return
        self._turn = (at >> INDEX_BITS) - part << INDEX_BITS
        fold = self.fold
        check = self._CHECKS.get(type(event))
        try:
            if check is not None:
                check(self, event, at, time_ms)
            elif self._known:
                self._check_with_state(event, at, time_ms)
            fold.take(event, at, time_ms, payload)
        except _MISFITS as error:
            self._broken = True
            self._tell(EVENT, at, f"{type(event).__name__} does not fit: {error!r:.100}")
            return
        if fold.state is None:
            self._forget()

    def _check_with_state(self, event: Event, at: Position, time_ms: int) -> None:
        state = self.fold.state
        if state is not None:
            check = self._CHECKS_WITH_STATE.get(type(event))
            if check is not None:
                check(self, state, event, at, time_ms)
        elif isinstance(event, Delivered | Queued):
            self._tell(NO_SUBSCRIPTION, at, "there is no session to deliver to")

    def finish(self) -> None:
        """Say that no more events follow."""
        if not self._broken and self.fold.state is not None:
            self._overdue(self._expected.items())

    # What is told.

    def _tell(self, rule: str, at: Position, what: str) -> None:
        self.found += 1
        if len(self.violations) < self._most:
            self.violations.append(Violation(rule, at, what))

    def _overdue(self, missing: Iterable[tuple[Position, _Message]]) -> None:
        for ref, message in missing:
            self._tell(
                UNDELIVERED,
                message.at,
                f"message {format_position(ref)} was neither delivered nor queued nor dropped",
            )

    def _forget(self) -> None:
        """Take note that the session ended; what it was owed is owed no more."""
        if self._expected:
            # What took effect in the turn in which it ended need not be recorded.
            before = self._turn
            self._overdue((ref, one) for ref, one in self._expected.items() if one.at < before)
        self._expected.clear()
        self._open.clear()
        self._last.clear()

    # The session.

    def _opened(self, event: SessionOpened, at: Position, _ms: int) -> None:
        state = self.fold.state
        if not event.resumed:
            if self._known and state is not None and not state.clean and not event.clean:
                self._tell(SESSION, at, "its state was thrown away though it was to be kept")
            self._forget()
            self._known = True
        elif self._known and state is None:
            self._tell(SESSION, at, "a session was resumed that there was not")

    def _ended(self, _event: SessionClosed | SessionExpired, at: Position, _ms: int) -> None:
        if self._known and self.fold.state is None:
            self._tell(SESSION, at, "a session ended that there was not")

    def _snapshot(self, event: SessionSnapshot, at: Position, _ms: int) -> None:
        if not self._known or at < self.fold.whole:
            self._known = self._known or event.last
            return
        if event.part == 0:
            self._parts = []
        self._parts.append(event.state)
        if event.last:
            parts, self._parts = self._parts, []
            state = self.fold.state
            if state is None:
                self._tell(CHECKPOINT, at, "a checkpoint repeats a session that there is not")
            elif orjson.dumps(encode(state)) != orjson.dumps(parts):
                self._tell(CHECKPOINT, at, "a checkpoint repeats another state than the log tells")

    # What it gets.

    def _delivered(self, state: SessionState, event: Delivered, at: Position, _ms: int) -> None:
        refs = from_runs(event.refs)
        self._check_identifiers(from_runs(event.pids), len(refs), state, at)
        held = state.subscriptions.get(event.filter)
        if held is None:
            self._tell(NO_SUBSCRIPTION, at, f"no subscription {event.filter!r:.200}")
        if event.queued >= 0:
            self._left_queue(held, refs, event.qos | event.retain << 2, at)
        if event.retain:
            if event.queued < 0:
                self._replayed(held, event, at)
            return
        waiting, expected, last = self._open, self._expected, self._last
        for number, ref in enumerate(refs):
            if event.queued < 0:
                message = expected.pop(ref, None)
                if message is None:
                    self._unexpected(ref, at + number)
                    continue
                waiting[ref] = message
                self._check_turn(message, at + number)
                self._check_filter(event.filter, message.topic, at + number)
            else:
                message = waiting.get(ref)
                if message is None:  # queued before the log began
                    continue
            if last.get(message.topic, 0) > message.at:
                self._tell(
                    ORDER,
                    at + number,
                    f"message {format_position(ref)} came after a later one of its topic",
                )
            last[message.topic] = message.at

    def _check_identifiers(
        self, pids: list[int], count: int, state: SessionState, at: Position
    ) -> None:
        """Check packet identifiers that are given to so many messages."""
        if len(pids) != count or len(set(pids)) != count:
            self._tell(PACKET_ID_REUSE, at, "not one packet identifier for each message")
        for number, pid in enumerate(pids):
            if pid in state.inflight or pid in state.releasing:
                self._tell(
                    PACKET_ID_REUSE, at + number, f"packet identifier {pid} was in flight already"
                )
            elif not 0 < pid <= _MOST_PID:
                self._tell(PACKET_ID_REUSE, at + number, f"{pid} is no packet identifier")

    def _queued(self, state: SessionState, event: Queued, at: Position, _ms: int) -> None:
        held = state.subscriptions.get(event.filter)
        if held is None:
            self._tell(NO_SUBSCRIPTION, at, f"no subscription {event.filter!r:.200}")
        if event.retain:
            self._replayed(held, event, at)
            return
        for number, ref in enumerate(from_runs(event.refs)):
            message = self._expected.pop(ref, None)
            if message is None:
                self._unexpected(ref, at + number)
                continue
            # Its filter need not match: a message goes behind what waits for another filter of
            # the session, lest it overtake a message of its topic.
            self._open[ref] = message
            self._check_turn(message, at + number)

    def _dropped(self, state: SessionState, event: MessageDropped, at: Position, _ms: int) -> None:
        refs = from_runs(event.refs)
        if event.queued >= 0 and refs:
            self._left_queue(state.subscriptions.get(event.filter), refs, None, at)
        for ref in refs:
            if self._expected.pop(ref, None) is None:
                self._open.pop(ref, None)

    def _unexpected(self, ref: Position, at: Position) -> None:
        if ref >= self._begin:
            self._tell(
                UNEXPECTED, at, f"message {format_position(ref)} was not to be delivered to it"
            )

    def _replayed(
        self, held: SubscriptionState | None, event: Delivered | Queued, at: Position
    ) -> None:
        """Check a retained message: it is sent when its filter is subscribed to."""
        if held is not None and not held.active:
            self._tell(NO_SUBSCRIPTION, at, f"no longer subscribed to {event.filter!r:.200}")

    def _check_turn(self, message: _Message, at: Position) -> None:
        """Check that what became of a message is on record together with it."""
        if message.at < self._turn:
            self._tell(UNDELIVERED, at, "what became of a message was recorded in a later turn")

    def _check_filter(self, topic_filter: str, topic: str, at: Position) -> None:
        key = (topic_filter, topic)
        found = self._matches.get(key)
        if found is None:
            if len(self._matches) >= _MATCHES_KEPT:
                self._matches.clear()
            found = self._matches[key] = matches(topic_filter, topic)
        if not found:
            self._tell(NO_SUBSCRIPTION, at, f"{topic_filter!r:.200} does not match the topic")

    def _left_queue(
        self, held: SubscriptionState | None, refs: list[Position], flags: int | None, at: Position
    ) -> None:
        """Check that messages, with these flags if given, are the first of a queue."""
        queue = held.queue if held is not None else None
        head = list(islice(queue, len(refs))) if queue is not None else []
        if flags is None:
            head, wanted = [packed >> FLAG_BITS for packed in head], refs
        else:
            wanted = [ref << FLAG_BITS | flags for ref in refs]
        if head != wanted:
            self._tell(QUEUE, at, "what left the queue did not stand at its head")

    # What its client answers, and sends.

    def _acked(self, state: SessionState, event: Acked, at: Position, ms: int) -> None:
        for number, pid in enumerate(from_runs(event.pids)):
            sent = state.inflight.get(pid)
            if sent is None or sent.flags & ~RETAIN_FLAG != 1:
                self._tell(ACKNOWLEDGEMENT, at + number, f"PUBACK {pid}: not on its way at QoS 1")
                continue
            message = self._open.pop(sent.ref, None)
            if message is not None and not sent.flags & RETAIN_FLAG:
                self._count(1, ms - message.time_ms)

    def _received(self, state: SessionState, event: Received, at: Position, _ms: int) -> None:
        for number, pid in enumerate(from_runs(event.pids)):
            sent = state.inflight.get(pid)
            if sent is None or sent.flags & ~RETAIN_FLAG != 2:
                self._tell(ACKNOWLEDGEMENT, at + number, f"PUBREC {pid}: not on its way at QoS 2")

    def _completed(self, state: SessionState, event: Completed, at: Position, ms: int) -> None:
        for number, pid in enumerate(from_runs(event.pids)):
            sent = state.releasing.get(pid)
            if sent is None:
                self._tell(ACKNOWLEDGEMENT, at + number, f"PUBCOMP {pid}: no PUBREL was sent")
                continue
            message = self._open.pop(sent.ref, None)
            if message is not None and not sent.flags & RETAIN_FLAG:
                self._count(2, ms - message.time_ms)

    def _redelivered(self, state: SessionState, event: Redelivered, at: Position, _ms: int) -> None:
        for number, pid in enumerate(from_runs(event.pids)):
            if pid not in state.inflight and pid not in state.releasing:
                self._tell(ACKNOWLEDGEMENT, at + number, f"{pid} was sent again, not on its way")

    def _published(
        self, state: SessionState, event: MessagePublished, at: Position, _ms: int
    ) -> None:
        if event.qos != 2 or event.will:
            return
        for number, pid in enumerate(from_runs(event.pids)):
            if pid in state.inbound:
                self._tell(
                    PACKET_ID_REUSE,
                    at + number,
                    f"PUBLISH {pid} was taken as new, the one before was not released",
                )

    def _released(self, state: SessionState, event: Released, at: Position, _ms: int) -> None:
        pids, refs = from_runs(event.pids), from_runs(event.refs)
        for number, (pid, ref) in enumerate(zip(pids, refs, strict=True)):
            if state.inbound.get(pid) != ref:
                self._tell(
                    ACKNOWLEDGEMENT,
                    at + number,
                    f"PUBREL {pid}: message {format_position(ref)} did not wait for it",
                )

    def _count(self, qos: int, latency_ms: int) -> None:
        latency_ms = max(0, latency_ms)  # clocks are set back
        counts = self.latencies.get(qos)
        if counts is None:
            counts = self.latencies[qos] = array("q", bytes(8 * BUCKETS))
        counts[min(latency_ms.bit_length(), BUCKETS - 1)] += 1
        if latency_ms > self.slowest_ms.get(qos, -1):
            self.slowest_ms[qos] = latency_ms

    _CHECKS: ClassVar[dict[type, Callable[[SessionAudit, Any, Position, int], None]]] = {
        SessionOpened: _opened,
        SessionClosed: _ended,
        SessionExpired: _ended,
        SessionSnapshot: _snapshot,
    }
    """What looks at the events that begin, end and repeat the state."""

    _CHECKS_WITH_STATE: ClassVar[
        dict[type, Callable[[SessionAudit, SessionState, Any, Position, int], None]]
    ] = {
        Delivered: _delivered,
        Queued: _queued,
        MessageDropped: _dropped,
        Acked: _acked,
        Received: _received,
        Completed: _completed,
        Redelivered: _redelivered,
        MessagePublished: _published,
        Released: _released,
    }
    """What looks at all others, where the state is known."""
