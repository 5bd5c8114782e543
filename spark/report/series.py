"""The data of the plots: rates in each interval, and latencies by bucket."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from projections.audit.audit_outcome import DropCount, LatencyHistogram, RatePoint

POINTS: Final = 400
"""Maximum points of a line: more are not visible."""


@dataclass(frozen=True, slots=True)
class RateSeries:
    """Messages per second, in intervals without gaps."""

    at_ms: tuple[int, ...]
    """Start of each interval."""
    interval_ms: int
    published: tuple[float, ...]
    delivered: tuple[float, ...]
    completed: tuple[float, ...]
    dropped: tuple[float, ...]

    @property
    def ends_ms(self) -> int:
        """End of the last interval."""
        return self.at_ms[-1] + self.interval_ms


def rate_series(
    points: Sequence[RatePoint], interval_ms: int, extent_ms: tuple[int, int] | None = None
) -> RateSeries:
    """Return the rates of all nodes together; many intervals are merged into fewer.

    ``extent_ms`` is the span of time of the logs: it may cut the first and the last interval short.
    """
    if not points:
        return RateSeries((), interval_ms, (), (), (), ())
    begins = min(point.at_ms for point in points)
    ends = max(point.at_ms for point in points) + interval_ms
    step = interval_ms * -(-(ends - begins) // (interval_ms * POINTS))
    count = -(-(ends - begins) // step)
    sums = [[0] * count for _ in range(4)]
    for point in points:
        at = (point.at_ms - begins) // step
        counts = (point.published, point.delivered, point.completed, point.dropped)
        for row, value in zip(sums, counts, strict=True):
            row[at] += value
    since, until = extent_ms or (begins, ends)
    seconds = [
        # No rate is computed for less than half an interval.
        max(step / 2, min(start + step, until) - max(start, since)) / 1000
        for start in range(begins, begins + count * step, step)
    ]
    lines = [
        tuple(value / length for value, length in zip(row, seconds, strict=True)) for row in sums
    ]
    return RateSeries(tuple(begins + at * step for at in range(count)), step, *lines)


def round_numbers(low: int, high: int, most: int) -> list[int]:
    """Return at most ``most`` round numbers that cover ``low`` to ``high``."""
    tens = [10**power for power in range(len(str(low)) - 1, len(str(high)) + 1)]
    for factors in ((1, 2, 5), (1, 3), (1,)):
        numbers = sorted(ten * factor for ten in tens for factor in factors)
        first = max(at for at, value in enumerate(numbers) if value <= low)
        last = min(at for at, value in enumerate(numbers) if value >= high)
        numbers = numbers[first : max(last, first + 1) + 1]
        if len(numbers) <= most:
            return numbers
    return numbers[:: -(-len(numbers) // most)]


@dataclass(frozen=True, slots=True)
class LatencyShares:
    """Shares of the deliveries of each QoS by latency."""

    bounds_ms: tuple[int, ...]
    """Upper bounds of the buckets, exclusive."""
    shares: tuple[tuple[int, tuple[float, ...]], ...]
    """QoS, and the fraction of deliveries in each bucket."""


def latency_shares(latencies: Sequence[LatencyHistogram]) -> LatencyShares:
    """Return the latencies from the first bucket to the last one that is not empty."""
    recorded = [latency for latency in latencies if sum(latency.counts)]
    if not recorded:
        return LatencyShares((), ())
    used = [at for claim in recorded for at, count in enumerate(claim.counts) if count]
    first, last = min(used), max(used)
    longest = max(recorded, key=lambda latency: len(latency.bounds_ms))
    return LatencyShares(
        longest.bounds_ms[first : last + 1],
        tuple((claim.qos, _shares(claim.counts, first, last)) for claim in recorded),
    )


def _shares(counts: Sequence[int], first: int, last: int) -> tuple[float, ...]:
    total = sum(counts)
    chosen = [*counts[first : last + 1]]
    chosen += [0] * (last + 1 - first - len(chosen))
    return tuple(count / total for count in chosen)


def drops_by_reason(drops: Sequence[DropCount]) -> list[tuple[str, int]]:
    """Return the drops of all nodes by reason, most first."""
    reasons: Counter[str] = Counter()
    for drop in drops:
        reasons[drop.reason] += drop.count
    return sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0]))
