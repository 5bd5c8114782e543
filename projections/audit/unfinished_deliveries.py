"""The deliveries of a session on its connection: the number of unfinished ones, and latencies.

A client has no more unfinished deliveries at a time than its Receive Maximum permits (MQTT 5).
"""

from collections.abc import Iterable
from typing import Final

from eventstore.format.positions import Position, Run, from_runs
from projections.audit.rule_table import Rule, Violation

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
