"""Counts over time, in intervals that grow with the time covered."""

from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Any, Final

from eventstore.format.events import Acked, Completed, Delivered, MessageDropped, MessagePublished
from projections.audit.audit_outcome import RatePoint

_COUNTED = {
    MessagePublished: "published",
    Delivered: "delivered",
    Acked: "completed",
    Completed: "completed",
    MessageDropped: "dropped",
}
_NAMES = ("published", "delivered", "completed", "dropped")
MIN_MS: Final = 1000
"""The shortest interval."""
_MAX: Final = 512
"""Maximum intervals kept by one reader."""
_SHOWN: Final = 240
"""Maximum intervals reported at the end, for the whole time."""


def interval_ms(begins_ms: int, ends_ms: int) -> int:
    """Return the interval length that divides a span of time into few enough intervals to plot."""
    length = MIN_MS
    while (ends_ms - begins_ms) // length >= _SHOWN:
        length *= 2
    return length


class RateCounts:
    """Counts for one node, by interval; an interval is a second times a power of two.

    The intervals have at least the given length, and get longer if there are too many.
    """

    def __init__(self, length_ms: int = MIN_MS) -> None:
        self._length = length_ms
        self._counts: dict[int, dict[type, int]] = {}

    def of(self, time_ms: int) -> dict[type, int]:
        """Return the counts of the interval that contains a time, by type of event."""
        number = time_ms // self._length
        counts = self._counts.get(number)
        if counts is None:
            if len(self._counts) >= _MAX:
                self._halve()
                return self.of(time_ms)
            counts = self._counts[number] = dict.fromkeys(_COUNTED, 0)
        return counts

    def _halve(self) -> None:
        self._length *= 2
        counts: dict[int, dict[type, int]] = {}
        for number, counted in self._counts.items():
            kept = counts.setdefault(number // 2, dict.fromkeys(_COUNTED, 0))
            for kind, count in counted.items():
                kept[kind] += count
        self._counts = counts

    def points(self) -> Iterator[dict[str, Any]]:
        """Yield the counts of each interval for serialization."""
        for number, counts in self._counts.items():
            sums = dict.fromkeys(_NAMES, 0)
            for kind, count in counts.items():
                sums[_COUNTED[kind]] += count
            if any(sums.values()):
                yield {"at_ms": number * self._length, "length_ms": self._length, **sums}


def merge_rates(counted: Iterable[tuple[str, dict[str, Any]]]) -> tuple[tuple[RatePoint, ...], int]:
    """Return the points of (node, counts), few enough to plot, and the length of the interval."""
    points = list(counted)
    if not points:
        return (), MIN_MS
    length = max(point["length_ms"] for _, point in points)
    begins = min(point["at_ms"] for _, point in points)
    ends = max(point["at_ms"] + point["length_ms"] for _, point in points)
    length = max(length, interval_ms(begins, ends))
    sums: dict[tuple[str, int], dict[str, int]] = defaultdict(lambda: dict.fromkeys(_NAMES, 0))
    for node, point in points:
        counts = sums[node, point["at_ms"] // length * length]
        for name in _NAMES:
            counts[name] += point[name]
    rate_points = (
        RatePoint(node, at_ms, **counts) for (node, at_ms), counts in sorted(sums.items())
    )
    return tuple(rate_points), length
