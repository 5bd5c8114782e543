"""The plots of the traffic: by hour, the busiest groups, and the growth of the log."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eventstore.display import duration, size
from spark.report.figure_style import (
    ROW_HEIGHT,
    add_legend,
    both_widths,
    calm_axes,
    hide_frame,
    number_text,
    shortened,
)
from spark.report.series import time_ticks
from spark.report.svg import COLOURS, axes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from matplotlib.figure import Figure

    from spark.report.figure_style import Plot

POINTS: Final = 400
"""Maximum points of a line: more are not visible."""
BUSIEST: Final = 12
"""Number of groups in the plot."""
KEPT_DAYS: Final = (1, 7, 30, 90)
"""Values of ``keep`` for which the size of the log is forecast."""
_HOUR_MS: Final = 3_600_000
_DAY_MS: Final = 86_400_000


@dataclass(frozen=True, slots=True)
class WindowSums:
    """Sums of several measures over time, in intervals without gaps."""

    begins_ms: int
    interval_ms: int
    sums: Mapping[str, Sequence[int]]
    """For each measure its sum in each interval."""

    @property
    def times_ms(self) -> list[int]:
        """The middle of each interval."""
        count = len(next(iter(self.sums.values())))
        first = self.begins_ms + self.interval_ms // 2
        return [first + number * self.interval_ms for number in range(count)]

    @property
    def ends_ms(self) -> int:
        """The end of the last interval."""
        return self.begins_ms + self.interval_ms * len(next(iter(self.sums.values())))


def window_sums(
    rows: Sequence[Mapping[str, int]], measures: Sequence[str], window_ms: int
) -> WindowSums | None:
    """Return the sums of windows (``at_ms``) in intervals of an hour; None if there are none.

    A log of less than six hours has shorter intervals, a very long one longer ones.
    """
    if not rows:
        return None
    begins = min(row["at_ms"] for row in rows)
    ends = max(row["at_ms"] for row in rows) + window_ms
    length = _HOUR_MS if ends - begins >= 6 * _HOUR_MS else -(-(ends - begins) // 60)
    length = max(length, -(-(ends - begins) // POINTS))
    interval = window_ms * -(-length // window_ms)
    begins -= begins % interval
    count = -(-(ends - begins) // interval)
    sums = {name: [0] * count for name in measures}
    for row in rows:
        place = (row["at_ms"] - begins) // interval
        for name in measures:
            sums[name][place] += row[name]
    return WindowSums(begins, interval, sums)


def hourly_plot(found: WindowSums) -> Plot:
    """Return the messages of each interval."""
    lines = (
        ("published", "a", "-"),
        ("delivered", "b", "-"),
        ("queued", "c", "--"),
        ("dropped", "d", "-"),
    )
    shown = [one for one in lines if any(found.sums[one[0]])] or [lines[0]]
    times = found.times_ms
    marker = "o" if len(times) == 1 else ""

    def fill(figure: Figure, narrow: bool) -> None:
        pane = axes(figure)
        for title, colour, dash in shown:
            pane.plot(
                times,
                found.sums[title],
                color=COLOURS[colour],
                lw=1.5,
                ls=dash,
                marker=marker,
                label=title,
            )
        marks = time_ticks(found.begins_ms, found.ends_ms, 4 if narrow else 9)
        pane.set_xticks([at for at, _ in marks], [title for _, title in marks])
        pane.set_xlim(found.begins_ms, found.ends_ms)
        calm_axes(pane, "messages")
        add_legend(figure, pane, narrow=narrow)

    every = "hour" if found.interval_ms == _HOUR_MS else duration(found.interval_ms)
    most = ", ".join(f"{title} {max(found.sums[title]):,}" for title, _, _ in shown)
    note = f"Messages in each {every}. Times are UTC. Of QoS 0, only retained publications."
    return both_widths(
        "traffic", f"Traffic by {every}", note, f"Most in one {every}: {most}", 2.8, fill
    )


def busiest_plot(title: str, groups: Sequence[tuple[str, int, int]]) -> Plot:
    """Return the busiest groups: (name, published, delivered) of each, the busiest first."""

    def fill(figure: Figure, narrow: bool) -> None:
        pane = axes(figure, grid="x")
        rows = range(len(groups))
        published = [one[1] for one in groups]
        pane.barh(rows, published, height=0.6, color=COLOURS["a"], label="published")
        bars = pane.barh(
            rows,
            [one[2] for one in groups],
            height=0.6,
            left=published,
            color=COLOURS["b"],
            label="delivered",
        )
        pane.bar_label(bars, [number_text(one[1] + one[2]) for one in groups], padding=4)
        names = [shortened(one[0], 14 if narrow else 40) for one in groups]
        pane.set_yticks(rows, names, color=COLOURS["text"])
        pane.invert_yaxis()
        pane.margins(x=0.25 if narrow else 0.1)
        pane.set_xticks([])
        pane.grid(visible=False)
        hide_frame(pane)
        add_legend(figure, pane, narrow=narrow)

    label = f"{title}: " + ", ".join(f"{one[0]} {one[1] + one[2]:,}" for one in groups)
    note = "Messages published and delivered; the table has the figures."
    height = 0.7 + ROW_HEIGHT * len(groups)
    return both_widths("busiest", title, note, label, height, fill)


@dataclass(frozen=True, slots=True)
class RetentionForecast:
    """The forecast size of the logs at the current rate of records."""

    stored: int
    """Bytes of the log now."""
    begins_ms: int
    ends_ms: int
    bytes_per_day: float
    kept: tuple[tuple[int, float], ...]
    """Days of ``keep``, and the bytes that the log then has."""


def retention_forecast(found: WindowSums, begins_ms: int, ends_ms: int) -> RetentionForecast | None:
    """Return the forecast from the stored bytes over time; None for a log of one moment."""
    length = ends_ms - begins_ms
    if length <= 0:
        return None
    stored = sum(found.sums["bytes"])
    rate = stored * _DAY_MS / length
    kept = tuple((days, rate * days) for days in KEPT_DAYS)
    return RetentionForecast(stored, begins_ms, ends_ms, rate, kept)


def forecast_plot(found: WindowSums, forecast: RetentionForecast) -> Plot:
    """Return the size of the log over time, continued for as long as it has lasted."""
    total, sizes = 0, []
    for count in found.sums["bytes"]:
        total += count
        sizes.append(total)
    times = [min(at + found.interval_ms // 2, forecast.ends_ms) for at in found.times_ms]
    later = forecast.ends_ms + (forecast.ends_ms - forecast.begins_ms)
    more = forecast.bytes_per_day * (later - forecast.ends_ms) / _DAY_MS

    def fill(figure: Figure, narrow: bool) -> None:
        pane = axes(figure)
        pane.plot(
            [forecast.begins_ms, *times], [0, *sizes], color=COLOURS["a"], lw=1.5, label="stored"
        )
        pane.plot(
            [forecast.ends_ms, later],
            [total, total + more],
            color=COLOURS["a"],
            lw=1.5,
            ls=":",
            label="forecast",
        )
        marks = time_ticks(forecast.begins_ms, later, 4 if narrow else 9)
        pane.set_xticks([at for at, _ in marks], [title for _, title in marks])
        pane.set_xlim(forecast.begins_ms, later)
        calm_axes(pane, "bytes")
        pane.yaxis.set_major_formatter(lambda value, _: size(round(value)))
        add_legend(figure, pane, narrow=narrow)

    label = (
        f"The log has {size(forecast.stored)} and grows by "
        f"{size(round(forecast.bytes_per_day))} a day"
    )
    note = (
        "Size of the current records of the log, and its growth at the mean rate if nothing is "
        "cut. Times are UTC."
    )
    return both_widths("forecast", "Retention forecast", note, label, 2.6, fill)
