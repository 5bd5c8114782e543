"""The traffic of a log as one HTML page, and its charts: by hour, by group, growth of the log."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.display import duration, name, size
from spark.report.charts import Line, Plot, bar_chart, number_text, time_chart
from spark.report.html_report import render_page
from spark.report.series import POINTS
from spark.report.traffic_report import TOP, traffic_tables
from spark.report.traffic_stats import TrafficStats

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
    sums = {measure: [0] * count for measure in measures}
    for row in rows:
        place = (row["at_ms"] - begins) // interval
        for measure in measures:
            sums[measure][place] += row[measure]
    return WindowSums(begins, interval, sums)


def hourly_plot(sums: WindowSums) -> Plot:
    """Return the messages of each interval."""
    measures = (("published", "a", "-"), ("delivered", "b", "-"), ("queued", "c", "--"))
    lines = [
        Line(title, sums.times_ms, sums.sums[title], colour, dash)
        for title, colour, dash in (*measures, ("dropped", "d", "-"))
    ]
    lines = [line for line in lines if any(line.values)] or lines[:1]
    every = "hour" if sums.interval_ms == _HOUR_MS else duration(sums.interval_ms)
    most = ", ".join(f"{line.label} {max(line.values):,}" for line in lines)
    note = f"Messages in each {every}. Times are UTC. Of QoS 0, only retained publications."
    caption = (f"Traffic by {every}", note, f"Most in one {every}: {most}")
    return time_chart("traffic", caption, lines, "messages", (sums.begins_ms, sums.ends_ms))


def busiest_plot(title: str, groups: Sequence[tuple[str, int, int]]) -> Plot:
    """Return the busiest groups: (name, published, delivered) of each, the busiest first."""
    names, published, delivered = zip(*groups, strict=True)
    parts = [("published", "a", published), ("delivered", "b", delivered)]
    label = f"{title}: " + ", ".join(f"{group[0]} {group[1] + group[2]:,}" for group in groups)
    note = "Messages published and delivered; the table has the figures."
    return bar_chart("busiest", (title, note, label), names, parts, number_text)


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


def retention_forecast(
    windows: WindowSums, begins_ms: int, ends_ms: int
) -> RetentionForecast | None:
    """Return the forecast from the stored bytes over time; None for a log of one moment."""
    length = ends_ms - begins_ms
    if length <= 0:
        return None
    stored = sum(windows.sums["bytes"])
    rate = stored * _DAY_MS / length
    kept = tuple((days, rate * days) for days in KEPT_DAYS)
    return RetentionForecast(stored, begins_ms, ends_ms, rate, kept)


def forecast_plot(windows: WindowSums, forecast: RetentionForecast) -> Plot:
    """Return the size of the log over time, continued for as long as it has lasted."""
    sizes = [0, *accumulate(windows.sums["bytes"])]
    times = [min(at + windows.interval_ms // 2, forecast.ends_ms) for at in windows.times_ms]
    later = forecast.ends_ms + (forecast.ends_ms - forecast.begins_ms)
    more = forecast.bytes_per_day * (later - forecast.ends_ms) / _DAY_MS
    ends = [sizes[-1], sizes[-1] + more]
    lines = [
        Line("stored", [forecast.begins_ms, *times], sizes, "a"),
        Line("forecast", [forecast.ends_ms, later], ends, "a", ":"),
    ]
    label = (
        f"The log has {size(forecast.stored)} and grows by "
        f"{size(round(forecast.bytes_per_day))} a day"
    )
    note = (
        "Size of the current records of the log, and its growth at the mean rate if nothing is "
        "cut. Times are UTC."
    )
    return time_chart(
        "forecast",
        ("Retention forecast", note, label),
        lines,
        "bytes",
        (forecast.begins_ms, later),
        text=lambda value: size(round(value)),
    )


_MEASURES: Final = ("published", "delivered", "queued", "dropped")
_NAME: Final = 200


def traffic_page(stats: TrafficStats, top: int = TOP) -> str:
    """Return the page; raises NoPlots without matplotlib."""
    nodes, groups, more = traffic_tables(stats, top)
    window_ms = stats.window_s * 1000
    plots: dict[str, Any] = {"traffic": None, "busiest": None, "forecast": None}
    traffic = window_sums(
        _by_window(stats.windows.groupBy("at_ms").agg(*map(_sum, _MEASURES))), _MEASURES, window_ms
    )
    if traffic is not None:
        plots["traffic"] = hourly_plot(traffic)
    busiest = [
        (group_label(stats, group), group["published"], group["delivered"])
        for group in groups[:BUSIEST]
        if group["published"] + group["delivered"]
    ]
    if busiest:
        plots["busiest"] = busiest_plot(f"Busiest by {', '.join(stats.by)}", busiest)
    stored = window_sums(
        _by_window(stats.stored.groupBy("at_ms").agg(_sum("bytes"))), ("bytes",), window_ms
    )
    forecast = None
    if stored is not None and nodes:
        begins, ends = min(node["begins"] for node in nodes), max(node["ends"] for node in nodes)
        forecast = retention_forecast(stored, begins, ends)
        if forecast is not None:
            plots["forecast"] = forecast_plot(stored, forecast)
    return render_page(
        "traffic.html",
        nodes=nodes,
        groups=groups,
        more=more,
        keys=[key for key in stats.groups.columns if key in stats.by],
        plots=plots,
        kept=[] if forecast is None else [(days, size(round(n))) for days, n in forecast.kept],
        per_day=None if forecast is None else size(round(forecast.bytes_per_day)),
        peaks=duration(window_ms),
        sum=lambda measure: sum(node[measure] for node in nodes),
        rate=_rate,
    )


def _sum(measure: str) -> Column:
    return F.sum(measure).alias(measure)


def _by_window(table: DataFrame) -> list[dict[str, int]]:
    return [row.asDict() for row in table.collect()]


def group_label(stats: TrafficStats, row: dict[str, Any]) -> str:
    """Return the name of a group for a plot, escaped."""
    keys = [key for key in stats.groups.columns if key in stats.by]
    values = ["(not known)" if row[key] is None else name(str(row[key]), _NAME) for key in keys]
    return ", ".join(values)


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:,.2f}"
