"""Small charts as SVG, rendered by the server without inline styles."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

from cli.web.activity import KEPT_MINUTES, MINUTE_MS, ActivityOfLogs

WIDTH, HEIGHT = 300, 60
_TOP = 4
"""Room above the highest value."""


@dataclass(frozen=True, slots=True)
class Curve:
    """One line of a chart, with gaps for unknown values."""

    label: str
    kind: str
    """CSS class of its colour: a, b or c."""
    line: str
    """Path of the line."""
    area: str
    """Path of the area below it."""


@dataclass(frozen=True, slots=True)
class Chart:
    """Curves over the same time."""

    title: str
    curves: list[Curve]
    top: float
    """The highest value."""
    seconds: float
    """Time span of the chart."""


Series = tuple[str, Sequence[float | None]]


def chart(title: str, times: Sequence[float], series: Sequence[Series]) -> Chart:
    """Draw labelled series of values at the same times (seconds)."""
    measured = [value for _, values in series for value in values if value is not None]
    top = max(measured, default=0.0)
    begin = times[0] if times else 0.0
    span = max(times[-1] - begin, 1e-9) if times else 1.0
    curves = []
    for kind, (label, values) in zip("abc", series, strict=False):
        pieces = _pieces([(at - begin) / span for at in times], values, top)
        line = " ".join("M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in piece) for piece in pieces)
        area = " ".join(
            f"M{piece[0][0]:.1f} {HEIGHT}L"
            + "L".join(f"{x:.1f} {y:.1f}" for x, y in piece)
            + f"L{piece[-1][0]:.1f} {HEIGHT}Z"
            for piece in pieces
        )
        curves.append(Curve(label, kind, line, area))
    return Chart(title, curves, top, span if times else 0.0)


def _pieces(
    shares: Sequence[float], values: Sequence[float | None], top: float
) -> list[list[tuple[float, float]]]:
    """Return runs of known points without gaps; a single point is no line."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for share, value in zip(shares, values, strict=True):
        if value is None:
            pieces.append([])
            continue
        height = (value / top if top else 0.0) * (HEIGHT - _TOP)
        pieces[-1].append((share * WIDTH, HEIGHT - height))
    return [piece for piece in pieces if len(piece) > 1]


def bars(counts: Sequence[int]) -> str:
    """Return a path of bars with the square root of the counts as height, to show small ones."""
    if not any(counts):
        return ""
    top = max(counts) ** 0.5
    wide = WIDTH / len(counts)
    return "".join(
        f"M{number * wide:.2f} {HEIGHT}h{max(wide, 0.75):.2f}"
        f"v-{max(6.0, HEIGHT * count**0.5 / top):.1f}h-{max(wide, 0.75):.2f}z"
        for number, count in enumerate(counts)
        if count
    )


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


def day_charts(activity: ActivityOfLogs, since_ms: int, now_ms: int) -> list[tuple[Chart, str]]:
    """Return the charts with the units of their values.

    They begin at ``since_ms``, from which the activity is known, or a day ago. A point is the mean
    of some whole minutes.
    """
    end = now_ms // MINUTE_MS
    first = min(max(end - KEPT_MINUTES, -(-since_ms // MINUTE_MS)), end)
    step = max(1, -(-(end - first) // _POINTS))
    starts = range(first, end, step)
    times = [60.0 * start for start in starts]
    repeats = 1
    if len(starts) == 1:  # a single mean is drawn as a level
        times.append(60.0 * end)
        repeats = 2
    charts = []
    for title, unit, share, curves in _CHARTS:
        series = [
            (
                label,
                [_mean(activity, name, start, min(start + step, end), share) for start in starts]
                * repeats,
            )
            for label, name in curves
        ]
        drawn = chart(title, times, series)
        charts.append((replace(drawn, seconds=60.0 * (end - first)), unit))
    return charts


def _mean(activity: ActivityOfLogs, name: str, first: int, end: int, share: float) -> float:
    """Return the mean of a figure over some minutes."""
    total = sum(activity.figure(name, minute) for minute in range(first, end))
    return total * share / (end - first)
