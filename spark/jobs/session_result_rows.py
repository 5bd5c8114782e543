"""The results of the audit of sessions: few rows of one table, and totals of each task."""

from __future__ import annotations

import heapq
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from projections.audit.unfinished_deliveries import BUCKETS
from spark.jobs.audit_outcome import MAX_VIOLATIONS

if TYPE_CHECKING:
    from array import array
    from collections.abc import Iterator, Mapping, Sequence

    from eventstore.format.positions import Position

VIOLATION: Final = "violation"
"""``ref`` is the message concerned, if there is one."""
NEEDED: Final = "needed"
"""The session refers to the messages ``refs`` when the log is cut at ``at``."""
CONNECTED: Final = "connected"
"""The session was connected from ``at`` on; ``refs`` are the times of its begin and end."""
SHARED: Final = "shared"
"""A step of the shared subscription ``session``; ``data`` is JSON, see ``shared_rules``."""
TOTALS: Final = "totals"
"""``data`` is JSON, see :class:`AuditTotals`."""

OF_RESULTS: Final = (
    "kind string, node string, session string, at bigint, rule string, ref bigint, what string, "
    "refs array<bigint>, data binary"
)
SCHEMA: Final = pa.schema(
    [
        ("kind", pa.string()),
        ("node", pa.string()),
        ("session", pa.string()),
        ("at", pa.int64()),
        ("rule", pa.string()),
        ("ref", pa.int64()),
        ("what", pa.string()),
        ("refs", pa.list_(pa.field("element", pa.int64()))),
        ("data", pa.binary()),
    ]
)

SLOWEST: Final = 20
"""Number of sessions reported."""
_ROWS: Final = 2048
_REFS: Final = 65_536
"""Maximum positions in one row."""


class AuditTotals:
    """Counts that can be added up over all tasks."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        """Number of checked items by kind, and of violations (``wrong RULE``)."""
        self.latencies: dict[int, list[int]] = {}
        """Counts by QoS and bucket, see ``projections.audit.unfinished_deliveries.BUCKETS``."""
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
        latencies = {int(qos): some for qos, some in other["latencies"].items()}
        self._add_latencies(latencies, {int(qos): ms for qos, ms in other["longest_ms"].items()})
        for one in other["slowest"]:
            self._push(tuple(one))

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

    def _push(self, one: Any) -> None:
        if len(self.slowest) < SLOWEST:
            heapq.heappush(self.slowest, one)
        elif one > self.slowest[0]:
            heapq.heapreplace(self.slowest, one)


def quantile(buckets: Sequence[int], share: float) -> int:
    """Return the number of the bucket that contains a quantile."""
    wanted, seen = share * sum(buckets), 0
    for number, count in enumerate(buckets):
        seen += count
        if count and seen >= wanted:
            return number
    return 0


def bounded(bucket: int, longest_ms: int) -> int:
    """Return the upper bound of a bucket in milliseconds, at most the longest latency."""
    return min((1 << bucket) - 1, longest_ms)


class SessionResults:
    """Collects the results of a task; with ``connections`` also the connections of sessions."""

    def __init__(self, *, connections: bool = False) -> None:
        self.connections = connections
        self.totals = AuditTotals()
        self._rows: list[tuple[Any, ...]] = []
        self._kept: Counter[str] = Counter()

    def violation(
        self,
        rule: str,
        node: str,
        session: str,
        at: Position,
        what: str,
        ref: Position | None = None,
    ) -> None:
        """Add a violation; violations beyond the limit are only counted."""
        self.totals.counts[f"wrong {rule}"] += 1
        if self._kept[rule] < MAX_VIOLATIONS:
            self._kept[rule] += 1
            self._rows.append((VIOLATION, node, session, at, rule, ref, what, None, None))

    def needed(self, node: str, session: str, at: Position, refs: Iterator[Position]) -> None:
        """Add the messages that a session refers to at a cut."""
        some: list[Position] = []
        for ref in refs:
            some.append(ref)
            if len(some) == _REFS:
                self._rows.append((NEEDED, node, session, at, None, None, None, some, None))
                some = []
        if some:
            self._rows.append((NEEDED, node, session, at, None, None, None, some, None))

    def connected(
        self, node: str, session: str, at: Position, begins_ms: int, ends_ms: int
    ) -> None:
        """Add a connection."""
        times = [begins_ms, ends_ms]
        self._rows.append((CONNECTED, node, session, at, None, None, None, times, None))

    def shared(self, node: str, group: str, at: Position, data: bytes) -> None:
        """Add a step of a shared subscription."""
        self._rows.append((SHARED, node, group, at, None, None, None, None, data))

    def full(self) -> Iterator[pa.RecordBatch]:
        """Yield the collected rows if there are many."""
        if len(self._rows) >= _ROWS:
            yield self._take()

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all remaining rows, and the totals."""
        nothing = (None,) * 7
        self._rows.append((TOTALS, *nothing, self.totals.data()))
        yield self._take()

    def _take(self) -> pa.RecordBatch:
        columns = zip(*self._rows, strict=True)
        arrays = [pa.array(column, one.type) for column, one in zip(columns, SCHEMA, strict=True)]
        self._rows = []
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)
