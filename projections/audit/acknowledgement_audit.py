"""What a client answers: acknowledgements, its unfinished deliveries, and what is sent again."""

from collections.abc import Callable, Iterable
from typing import Any, Final

from eventstore.format.event_parsing import Event
from eventstore.format.events import Acked, Completed, Received, Redelivered, Refused, Returned
from eventstore.format.positions import Position, Run, from_runs
from projections.audit import single_event_rules
from projections.audit.expected_messages import ExpectedMessage
from projections.audit.ordering_rules import RedeliveryOrder
from projections.audit.rule_table import Rule, Violation
from projections.state.session import InFlight, SessionState
from projections.state.waiting_queue import QOS_MASK, RETAIN_FLAG
from protocol.mqtt.reason_codes import FAILURE
from protocol.mqtt.replay_filters import is_replay_filter


class AcknowledgementAudit:
    """The deliveries of one session from PUBLISH to the last acknowledgement.

    ``report`` is called with each violation.
    """

    __slots__ = ("_resending", "_saw_opening", "_unfinished", "_violations", "latencies", "open")

    def __init__(self, report: Callable[[Violation], object]) -> None:
        self._violations = report
        self._resending: RedeliveryOrder | None = None
        """What a resumed session sends again; None: nothing, or it is not known."""
        self._saw_opening = False
        """Whether the beginning of the current connection was in the log."""
        self._unfinished = UnfinishedDeliveries()
        self.latencies = Latencies()
        self.open: dict[Position, ExpectedMessage] = {}
        """Messages in flight to the client."""

    def _report(self, at: Position, what: str) -> None:
        self._violations(Violation(Rule.ACKNOWLEDGEMENT, at, what))

    def _report_all(self, violations: Iterable[Violation]) -> None:
        for violation in violations:
            self._violations(violation)

    def opened(self, resumed: SessionState | None, at: Position, *, known: bool) -> None:
        """Begin a connection; ``resumed`` is the state that continues, None: a new one begins.

        ``known``: the log contains that state, and so what the client had in flight.
        """
        if known and resumed is not None and (resumed.inflight or resumed.releasing):
            self._resending = RedeliveryOrder(resumed, at)
        self._saw_opening = known

    def ended(self) -> None:
        """End a connection, or the session."""
        self._resending = None
        self._unfinished.clear()

    def forget(self) -> None:
        """Forget the session, which ended."""
        self.open.clear()
        self._resending = None

    def interrupted(self) -> None:
        """Forget the session and its connection: records are lost."""
        self.ended()
        self.forget()
        self._saw_opening = False

    def take(self, event: Event | None, at: Position) -> None:
        """Check that an event may come before the PUBRELs that are sent again; None: the end."""
        if self._resending is not None and self._resending.releasing:
            self._report_all(self._resending.released(event, at))

    def sent(self, state: SessionState, pids: list[int], at: Position) -> None:
        """Check messages that are sent for the first time."""
        self._report_all(self._unfinished.sent(state.receive_maximum, pids, at))
        if self._resending is not None:
            self._report_all(self._resending.overtaken(at))

    def redelivered(self, state: SessionState, event: Redelivered, at: Position, _ms: int) -> None:
        """Check packets that are sent again."""
        publications = [pid for pid in from_runs(event.pids) if pid in state.inflight]
        self._report_all(self._unfinished.sent(state.receive_maximum, publications, at))
        if event.cause != "resumed":
            return
        if self._resending is not None:
            self._report_all(self._resending.again(event, at))
        elif self._saw_opening:
            self._report(at, "packets were sent again as resumed, but no session was resumed")

    def acked(self, state: SessionState, event: Acked, at: Position, ms: int) -> None:
        """Check PUBACK packets, and messages whose delivery ends without one."""
        if self._resending is not None:
            self._resending.answered(event)
        self._unfinished.ended(event.pids)
        codes = from_runs(event.reasons)
        if codes:
            self._report_all(single_event_rules.ended_unsent(state, event, at))
        for number, pid in enumerate(from_runs(event.pids)):
            sent = state.inflight.get(pid)
            if sent is None or sent.flags & QOS_MASK != 1:
                self._report(at + number, f"PUBACK {pid}: not in flight at QoS 1")
            elif codes and codes[number] >= FAILURE:
                self.open.pop(sent.ref, None)  # refused, or not sent again
            elif _is_timed(sent):
                self._done(1, sent.ref, ms)

    def received(self, _state: SessionState, event: Received, _at: Position, _ms: int) -> None:
        """Note PUBREC packets."""
        if self._resending is not None:
            self._resending.answered(event)

    def refused(
        self, state: SessionState, event: Refused | Returned, _at: Position, _ms: int
    ) -> None:
        """Note messages that the client refused, or that its shared subscription takes back."""
        if self._resending is not None:
            self._resending.answered(event)
        self._unfinished.ended(event.pids)
        for pid in from_runs(event.pids):
            sent = state.inflight.get(pid)
            if sent is not None:
                self.open.pop(sent.ref, None)

    def completed(self, state: SessionState, event: Completed, at: Position, ms: int) -> None:
        """Check PUBCOMP packets."""
        if self._resending is not None:
            self._resending.answered(event)
        self._unfinished.ended(event.pids)
        for number, pid in enumerate(from_runs(event.pids)):
            sent = state.releasing.get(pid)
            if sent is None:
                self._report(at + number, f"PUBCOMP {pid}: no PUBREL was sent")
            elif _is_timed(sent):
                self._done(2, sent.ref, ms)

    def _done(self, qos: int, ref: Position, ms: int) -> None:
        message = self.open.pop(ref, None)
        if message is not None:
            self.latencies.add(qos, ms - message.time_ms)


def _is_timed(sent: InFlight) -> bool:
    """Return whether a message was sent when it was published: neither retained nor replayed."""
    return not (sent.flags & RETAIN_FLAG or is_replay_filter(sent.subscription.filter))


ANSWERS: Final[
    dict[type, Callable[[AcknowledgementAudit, SessionState, Any, Position, int], None]]
] = {
    Acked: AcknowledgementAudit.acked,
    Received: AcknowledgementAudit.received,
    Refused: AcknowledgementAudit.refused,
    Returned: AcknowledgementAudit.refused,
    Completed: AcknowledgementAudit.completed,
    Redelivered: AcknowledgementAudit.redelivered,
}
"""Type of event -> its check, where the state of the session is known."""


BUCKETS: Final = 40
"""Number of latency classes: a latency counts by its bit length in milliseconds: 0, 1, 2-3, ..."""
_ANY: Final = 65_535
"""The Receive Maximum of a client that sends none: the number of packet identifiers."""


class UnfinishedDeliveries:
    """The QoS 1 and 2 deliveries that were sent on a connection and are not finished."""

    __slots__ = ("_pids",)

    def __init__(self) -> None:
        self._pids: set[int] = set()

    def sent(self, most: int, pids: list[int], at: Position) -> list[Violation]:
        """Record that PUBLISH packets were sent; return a violation when they are too many.

        ``most`` is the Receive Maximum of the client [MQTT-3.3.4-9].
        """
        if most >= _ANY:
            return []
        self._pids.update(pids)
        if len(self._pids) <= most:
            return []
        what = f"{len(self._pids)} deliveries were unfinished, Receive Maximum is {most}"
        return [Violation(Rule.RECEIVE_MAXIMUM, at, what)]

    def ended(self, pids: Iterable[Run]) -> None:
        """Record that deliveries are finished."""
        if self._pids:
            self._pids.difference_update(from_runs(pids))

    def clear(self) -> None:
        """Begin a new connection: only deliveries that are sent again count."""
        self._pids.clear()


class Latencies:
    """The times from the publication of messages to the acknowledgement of their delivery."""

    __slots__ = ("counts", "slowest_ms")

    def __init__(self) -> None:
        self.counts: dict[int, list[int]] = {}
        """QoS of the delivery -> acknowledged deliveries by latency, see ``BUCKETS``."""
        self.slowest_ms: dict[int, int] = {}
        """QoS of the delivery -> the longest latency in milliseconds."""

    def add(self, qos: int, latency_ms: int) -> None:
        """Count a delivery; a negative latency is 0: a clock may be set back."""
        latency_ms = max(0, latency_ms)
        counts = self.counts.get(qos)
        if counts is None:
            counts = self.counts[qos] = [0] * BUCKETS
        counts[min(latency_ms.bit_length(), BUCKETS - 1)] += 1
        if latency_ms > self.slowest_ms.get(qos, -1):
            self.slowest_ms[qos] = latency_ms
