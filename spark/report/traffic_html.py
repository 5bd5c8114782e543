"""The traffic of a log as one HTML page with plots: self-contained, without scripts."""

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.display import duration, name, size
from spark.report.html_report import render_page
from spark.report.traffic_plots import (
    BUSIEST,
    busiest_plot,
    forecast_plot,
    hourly_plot,
    retention_forecast,
    window_sums,
)
from spark.report.traffic_report import TOP, traffic_tables
from spark.report.traffic_stats import TrafficStats

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
        (group_label(stats, one), one["published"], one["delivered"])
        for one in groups[:BUSIEST]
        if one["published"] + one["delivered"]
    ]
    if busiest:
        plots["busiest"] = busiest_plot(f"Busiest by {', '.join(stats.by)}", busiest)
    stored = window_sums(
        _by_window(stats.stored.groupBy("at_ms").agg(_sum("bytes"))), ("bytes",), window_ms
    )
    forecast = None
    if stored is not None and nodes:
        begins, ends = min(one["begins"] for one in nodes), max(one["ends"] for one in nodes)
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
        sum=lambda measure: sum(one[measure] for one in nodes),
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
