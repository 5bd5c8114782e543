"""The traffic of a log as text and JSON: of each node, and of the busiest groups."""

from typing import Any, Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - its usual name

from eventstore.display import duration, iso, name, size
from spark.report.findings import span, utc
from spark.report.text_report import Cell, table_lines
from spark.report.traffic_stats import TrafficStats

TOP: Final = 20
"""Default number of groups shown."""
_NAME: Final = 48
_TIMES: Final = ("begins", "ends", "peak_at")


def traffic_tables(
    stats: TrafficStats, top: int = TOP
) -> tuple[list[dict[str, Any]], list[dict[str, Any]], int]:
    """Return the rows of the nodes, of the busiest groups, and how many more groups there are.

    Times are Unix times in milliseconds.
    """
    nodes = _rows(stats.nodes)
    if not nodes or not stats.by:
        return nodes, [], 0
    busiest = stats.groups.orderBy(
        F.desc(F.col("published") + F.col("delivered")), "node", *_keys(stats)
    )
    rows = _rows(busiest.limit(top + 1))
    return nodes, rows[:top], stats.groups.count() - top if len(rows) > top else 0


def traffic_text(stats: TrafficStats, top: int = TOP) -> str:
    """Return the traffic as tables; every line is printable."""
    nodes, groups, more = traffic_tables(stats, top)
    if not nodes:
        return "the log is empty: there was no traffic\n"
    lines: list[str] = []
    for node in nodes:
        length = node["ends"] - node["begins"]
        stored = f"{node['records']:,} records, {size(node['stored'])} stored"
        if node["stored_rate"] is not None:
            stored += f" ({size(round(node['stored_rate'] * 86_400))} in a day at this rate)"
        reach = span(node["begins"], node["ends"])
        lines += [f"{name(node['node'], _NAME)}: {reach} ({duration(length)}), {stored}"]
    trends = any(node["growth"] is not None for node in nodes)
    several = len(nodes) > 1
    lines.append("")
    rows = [_row(stats, "all", node, several=several, trends=trends) for node in nodes]
    rows += [_row(stats, None, group, several=several, trends=trends) for group in groups]
    if more:
        rows.append([f"and {more:,} more", *[""] * (len(rows[0]) - 1)])
    head = [
        *(_keys(stats) or [""]),
        *(["node"] if several else []),
        *(">published", ">delivered", ">queued", ">dropped", ">bytes in", ">bytes out"),
        *(">messages/s", ">peak/s", "peak at (UTC)"),
        *([">more/s a day"] if trends else []),
    ]
    lines += table_lines(head, rows)
    lines += [
        "",
        f"Peaks are averages over {duration(stats.window_s * 1000)}; bytes are those of payloads.",
        "At QoS 0, the log contains only retained publications.",
    ]
    return "\n".join(lines) + "\n"


def traffic_json(stats: TrafficStats, top: int | None = None) -> dict[str, Any]:
    """Return the traffic as JSON values, of all groups or the first ``top`` of each node."""
    groups = stats.groups if top is None else stats.groups.limit(top)
    return {
        "by": list(stats.by),
        "levels": stats.levels,
        "window_s": stats.window_s,
        "nodes": [_with_times(row) for row in _rows(stats.nodes)],
        "groups": [_with_times(row) for row in _rows(groups)] if stats.by else [],
    }


def _keys(stats: TrafficStats) -> list[str]:
    return [key for key in stats.groups.columns if key in stats.by]


def _rows(frame: DataFrame) -> list[dict[str, Any]]:
    """Return rows with times as integers (Unix, milliseconds), independent of time zones."""
    times: dict[str, Column] = {key: F.unix_millis(key) for key in _TIMES if key in frame.columns}
    return [row.asDict() for row in frame.withColumns(times).collect()]


def _with_times(row: dict[str, Any]) -> dict[str, Any]:
    return {key: iso(value) if key in _TIMES else value for key, value in row.items()}


def _row(
    stats: TrafficStats, label: str | None, row: dict[str, Any], *, several: bool, trends: bool
) -> list[Cell]:
    keys = _keys(stats)
    if label is None:
        head: list[Cell] = [_shown(row[key]) for key in keys]
    else:
        head = [label, *[""] * (max(1, len(keys)) - 1)]
    return [
        *head,
        *([name(row["node"], _NAME)] if several else []),
        *(f"{row[key]:,}" for key in ("published", "delivered", "queued", "dropped")),
        size(row["published_bytes"]),
        size(row["delivered_bytes"]),
        _rate(row["rate"]),
        _rate(row["peak_rate"]),
        utc(row["peak_at"]),
        *([_rate(row["growth"])] if trends else []),
    ]


def _shown(key: str | int | None) -> str:
    if key is None:
        return "(not known)"
    return name(key, _NAME) if isinstance(key, str) else str(key)


def _rate(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:,.2f}"
