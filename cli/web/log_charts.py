"""Charts of the last day, from the activity of each minute."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from cli.web.activity import KEPT_MINUTES, MINUTE_MS
from cli.web.svg_charts import chart

if TYPE_CHECKING:
    from cli.web.activity import Activity
    from cli.web.log_activities import ActivityOfLogs
    from cli.web.svg_charts import Chart

_POINTS: Final = 144
"""Maximum points of a chart: over a whole day, each stands for ten minutes."""
_PER_SECOND: Final = 1 / 60
_PER_MINUTE: Final = 1.0
_CHARTS: Final = (
    (
        "Messages per second",
        "count",
        _PER_SECOND,
        (("published", "published"), ("delivered", "delivered")),
    ),
    (
        "Not delivered per minute",
        "count",
        _PER_MINUTE,
        (("dropped", "dropped"), ("expired", "expired")),
    ),
    (
        "Connections per minute",
        "count",
        _PER_MINUTE,
        (("connects", "connect"), ("lost", "lost"), ("takeovers", "takeover")),
    ),
    ("Log per second", "size", _PER_SECOND, (("bytes", "log_bytes"),)),
)


def day_charts(
    activity: Activity | ActivityOfLogs, since_ms: int, now_ms: int
) -> list[tuple[Chart, str]]:
    """Return the charts with the units of their values.

    They begin at ``since_ms``, from which the activity is known, or a day ago. A point is the mean
    of some whole minutes.
    """
    end = now_ms // MINUTE_MS
    first = min(max(end - KEPT_MINUTES, -(-since_ms // MINUTE_MS)), end)
    step = max(1, -(-(end - first) // _POINTS))
    starts = range(first, end, step)
    times = [60.0 * start for start in starts]
    found = []
    for title, unit, share, curves in _CHARTS:
        series = [
            (
                label,
                [_mean(activity, name, start, min(start + step, end), share) for start in starts],
            )
            for label, name in curves
        ]
        drawn = chart(title, times, series)
        found.append((replace(drawn, seconds=60.0 * (end - first)), unit))
    return found


def _mean(
    activity: Activity | ActivityOfLogs, name: str, first: int, end: int, share: float
) -> float:
    """Return the mean of a figure over some minutes."""
    return (
        sum(activity.figure(name, minute) for minute in range(first, end)) * share / (end - first)
    )
