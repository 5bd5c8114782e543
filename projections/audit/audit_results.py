"""What the folds of an audit yield: facts with few columns, and the totals of each fold."""

from __future__ import annotations

import heapq
from array import array
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from eventstore.format.positions import Position
from projections.audit.acknowledgement_audit import BUCKETS
from projections.audit.audit_outcome import MAX_VIOLATIONS
from projections.audit.facts import NEEDED, TOTALS, VIOLATION
from projections.audit.log_summary import LogSummary
from projections.audit.rule_table import LogPlace, Rule, Violation

RESULT_COLUMNS: Final = (
    "kind", "node", "session", "at", "topic", "ref", "digest", "time_ms", "expires", "data",
)  # fmt: skip
"""The columns of what folds yield, see ``facts``."""
Row = tuple[Any, ...]

SLOWEST: Final = 20
"""Number of sessions reported."""
MANY_ROWS: Final = 2048
"""Number of rows that a fold collects before it yields them."""
_REFS: Final = 65_536
"""Maximum positions in one row."""


@dataclass(frozen=True, slots=True)
class AuditPlan:
    """What all folds of an audit know of the logs."""

    logs: Mapping[str, LogSummary]
    complete: Mapping[str, Sequence[tuple[Position, str]]] = field(default_factory=dict)
    """By node, the positions at which claims are complete, with their source."""
    connections: bool = False
    """Whether the connections of sessions are compared between nodes."""
    since: Mapping[str, Position] = field(default_factory=dict)
    """By node, the last start of its broker, if what it recovered is counted and violations are
    reported from there on only; empty: all of them."""
    places: Mapping[str, LogPlace] = field(default_factory=dict)
    """The places of logs among those of their brokers, by node."""


class AuditTotals:
    """Counts that can be added up over all folds."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Number of checked items by kind, and of violations (``wrong RULE``)."""
        self.latencies: dict[int, list[int]] = {}
        """Counts by QoS and bucket, see ``projections.audit.acknowledgement_audit.BUCKETS``."""
        self.longest_ms: dict[int, int] = {}
        self.slowest: list[tuple[int, int, int, int, str, str]] = []
        """A heap: p99, maximum, median (milliseconds), number of deliveries, node, session."""

    def add_session(
        self,
        node: str,
        session: str,
        latencies: Mapping[int, array[int] | list[int]],
        longest_ms: Mapping[int, int],
    ) -> None:
        """Add the latencies of a session."""
        self._add_latencies(latencies, longest_ms)
        buckets = [sum(column) for column in zip(*latencies.values(), strict=True)]
        longest = max(longest_ms.values())
        p50, p99 = (bounded(quantile(buckets, share), longest) for share in (0.5, 0.99))
        self._push((p99, longest, p50, sum(buckets), node, session))

    def merge(self, other: Mapping[str, Any]) -> None:
        """Add serialized totals."""
        self.counts.update(other["counts"])
        latencies = {int(qos): buckets for qos, buckets in other["latencies"].items()}
        self._add_latencies(latencies, {int(qos): ms for qos, ms in other["longest_ms"].items()})
        for session in other["slowest"]:
            self._push(tuple(session))

    def data(self) -> bytes:
        """Return the totals, serialized."""
        values = {
            "counts": self.counts,
            "latencies": self.latencies,
            "longest_ms": self.longest_ms,
            "slowest": self.slowest,
        }
        return orjson.dumps(values, option=orjson.OPT_NON_STR_KEYS)

    def _add_latencies(
        self, latencies: Mapping[int, array[int] | list[int]], longest_ms: Mapping[int, int]
    ) -> None:
        for qos, buckets in latencies.items():
            sums = self.latencies.setdefault(qos, [0] * BUCKETS)
            for number, count in enumerate(buckets):
                sums[number] += count
        for qos, longest in longest_ms.items():
            self.longest_ms[qos] = max(longest, self.longest_ms.get(qos, 0))

    def _push(self, session: Any) -> None:
        if len(self.slowest) < SLOWEST:
            heapq.heappush(self.slowest, session)
        elif session > self.slowest[0]:
            heapq.heapreplace(self.slowest, session)


def quantile(buckets: Sequence[int], share: float) -> int:
    """Return the number of the bucket that contains a quantile."""
    rank, seen = share * sum(buckets), 0
    for number, count in enumerate(buckets):
        seen += count
        if count and seen >= rank:
            return number
    return 0


def bounded(bucket: int, longest_ms: int) -> int:
    """Return the upper bound of a bucket in milliseconds, at most the longest latency."""
    return min((1 << bucket) - 1, longest_ms)


class AuditResults:
    """Collects the results of a fold; with ``connections`` also the connections of sessions.

    ``since`` is that of ``AuditPlan``.
    """

    def __init__(
        self, since: Mapping[str, Position] | None = None, *, connections: bool = False
    ) -> None:
        self.connections = connections
        self._since = since or {}
        self.totals = AuditTotals()
        self._rows: list[Row] = []
        self._kept: Counter[str] = Counter()

    def violation(
        self,
        rule: str,
        node: str,
        session: str | None,
        at: Position,
        what: str,
        ref: Position | None = None,
    ) -> None:
        """Add a violation; violations beyond the limit are only counted.

        Those before the last start are left out if only later ones are reported, but not claims.
        """
        if rule != Rule.STATE and at < self._since.get(node, 0):
            return
        self.totals.counts[f"wrong {rule}"] += 1
        if self._kept[rule] < MAX_VIOLATIONS:
            self._kept[rule] += 1
            self.add(VIOLATION, node, session, at, rule, ref, what)

    def report(self, violation: Violation) -> None:
        """Add a violation of which the node is known."""
        rule, at, what, ref, session, node = violation
        self.violation(rule, node, session, at, what, ref)

    def needed(
        self, node: str, session: str | None, at: Position, refs: Iterator[Position]
    ) -> None:
        """Add the messages that are needed at a cut."""
        batch: list[Position] = []
        for ref in refs:
            batch.append(ref)
            if len(batch) == _REFS:
                self.add(NEEDED, node, session, at, data=orjson.dumps(batch))
                batch = []
        if batch:
            self.add(NEEDED, node, session, at, data=orjson.dumps(batch))

    def add(
        self,
        kind: int,
        node: str,
        session: str | None,
        at: Position,
        topic: str | None = None,
        ref: Position | None = None,
        what: str | None = None,
        begins_ms: int | None = None,
        ends_ms: int | None = None,
        data: bytes | None = None,
    ) -> None:
        """Add a fact, see ``RESULT_COLUMNS``; ``what`` is its digest."""
        self._rows.append((kind, node, session, at, topic, ref, what, begins_ms, ends_ms, data))

    def full(self) -> list[Row]:
        """Return the collected rows if there are many, and forget them."""
        return self._take() if len(self._rows) >= MANY_ROWS else []

    def rest(self) -> list[Row]:
        """Return all remaining rows, and the totals."""
        self.add(TOTALS, "", None, 0, data=self.totals.data())
        return self._take()

    def _take(self) -> list[Row]:
        rows, self._rows = self._rows, []
        return rows
