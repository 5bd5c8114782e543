"""Counters and histograms of the journal."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eventstore.metric_types import counted

_COMMIT_SECONDS = (
    0.0005, 0.001, 0.0015, 0.002, 0.003, 0.004, 0.006, 0.008, 0.012, 0.016,
    0.024, 0.032, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
)  # fmt: skip
_EVENTS = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384)


class Histogram:
    """Counts of values between bounds.

    ``counts[i]`` counts values up to ``bounds[i]`` and above the bound before. There is one more
    count than bounds: the last one counts all larger values.
    """

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """The number of values."""
        return sum(self.counts)

    def as_object(self) -> dict[str, Any]:
        """Return a JSON object; its counts are not cumulative."""
        return {
            "bounds": self.bounds,
            "counts": self.counts,
            "sum": round(self.sum, 6),
            "count": self.count,
        }


@dataclass(slots=True)
class JournalStats:
    """The statistics of the journal since the start."""

    records: int = counted(
        "foldmq_log_records_total", "Records written to disk since the start.", "log.records"
    )
    events: int = counted("foldmq_log_events_total", "Events in these records.", "log.events")
    entries: int = counted(
        "foldmq_log_entries_total",
        "Log entries in these records; each message in an event counts as one.",
        "log.entries",
    )
    bytes: int = counted("foldmq_log_written_bytes_total", "Bytes of these records.", "log.bytes")
    released: int = 0
    """Number of outputs that the gate released."""
    commit: Histogram = counted(
        "foldmq_commit_seconds",
        "Time from the first event of a record until the record is on disk.",
        "commit",
        kind="histogram",
        start=lambda: Histogram(_COMMIT_SECONDS),
    )
    record_events: Histogram = counted(
        "foldmq_record_events",
        "Events in a record.",
        "record_events",
        kind="histogram",
        start=lambda: Histogram(_EVENTS),
    )

    def stored(self, events: int, entries: int, size: int) -> None:
        """Count a stored record."""
        self.records += 1
        self.events += events
        self.entries += entries
        self.bytes += size
        self.record_events.observe(events)
