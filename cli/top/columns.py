"""The tables: their columns, which of them fit, and their cells."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from rich.table import Table
from rich.text import Text

from cli.common import text
from cli.top import number_format
from cli.top.watched_broker import Row
from eventstore.reasons import close_words

GAP = 2
"""Cells between two columns."""
_NAME_SHOWN = 400
"""Maximum number of characters of a name in a table; no terminal is wider."""


@dataclass(frozen=True, slots=True)
class TopColumn:
    """A column: its title, its value of a row, and its rank."""

    title: str
    width: int
    """Width in cells; of a ``wide`` column, the minimum."""
    show: Callable[[Row], str]
    rank: int = 0
    """Columns with high ranks are omitted first if space is short."""
    right: bool = True
    wide: bool = False
    """Whether it gets the remaining width."""
    style: str = ""
    sort: str | None = None
    """Sort key of the rows when this column is selected."""


def fitting(columns: Sequence[TopColumn], width: int) -> list[tuple[TopColumn, int]]:
    """Return the columns that fit into ``width`` cells, in order, with their widths."""
    chosen = sorted(columns, key=lambda column: column.rank)
    while len(chosen) > 1 and _needed(chosen) > width:
        chosen.pop()
    spare = max(0, width - _needed(chosen))
    wide = [column for column in chosen if column.wide]
    return [
        (column, column.width + (spare // len(wide) if column.wide else 0))
        for column in columns
        if column in chosen
    ]


def _needed(columns: Sequence[TopColumn]) -> int:
    return sum(column.width for column in columns) + GAP * (len(columns) - 1)


def titles(sized: Sequence[tuple[TopColumn, int]], sort: str | None, part: str = "") -> list[Text]:
    """Return the titles, with the sort column marked and the filter in the first wide column."""
    line: list[Text] = []
    for column, width in sized:
        sorted_by = sort is not None and column.sort == sort
        title = f"{column.title}▼" if sorted_by else column.title
        if part and column.wide:
            title, part = f"{title} /{text.escaped(part)}", ""
        style = "bold underline cyan" if sorted_by else "bold underline"
        line.append(_cell(title, style, width, right=column.right))
    return line


def cells_of(row: Row, sized: Sequence[tuple[TopColumn, int]]) -> list[Text]:
    """Return the cells of a row, each of the width of its column."""
    return [
        _cell(column.show(row), column.style, width, right=column.right) for column, width in sized
    ]


def _cell(shown: str, style: str, width: int, *, right: bool) -> Text:
    # A name may have 64 KiB: measure only the part that can be shown.
    cell = Text(shown[: 2 * width + 2], style, no_wrap=True)
    cell.truncate(width, overflow="ellipsis")
    cell.align("right" if right else "left", width)
    return cell


def top_table(columns: Sequence[TopColumn], rows: Sequence[Row], sort: str, width: int) -> Table:
    """Return a table that is at most ``width`` cells wide."""
    sized = fitting(columns, width)
    table = Table.grid(padding=(0, GAP))
    for _, cells in sized:
        table.add_column(width=cells)
    table.add_row(*titles(sized, sort))
    for row in rows:
        table.add_row(*cells_of(row, sized))
    return table


def _name(row: Row, key: str) -> str:
    value = row.get(key)
    return number_format.NOTHING if value is None else text.name(str(value), _NAME_SHOWN)


def _last_active(row: Row) -> str:
    at, now = row.get("last_active_ms"), row.get("now_ms")
    return number_format.NOTHING if at is None or now is None else number_format.age_text(now - at)


def _busy(row: Row) -> str:
    return number_format.figure_duration(row["busy_us"] / 1e6)


def _of_history(row: Row, key: str) -> str:
    """Return a count of a client's history, if the broker has it."""
    without = "counted_since_ms" in row and row["counted_since_ms"] is None
    return number_format.NOTHING if without else number_format.count(row.get(key))


def _last_end(row: Row) -> str:
    reason = row.get("last_close")
    return close_words(reason) if reason else number_format.NOTHING


def _reconnects(row: Row) -> str:
    connects = row.get("connects")
    if connects is not None:
        row = {**row, "connects": max(0, connects - 1)}
    return _of_history(row, "connects")


ACTORS = (
    TopColumn("ACTOR", 18, lambda row: text.escaped(str(row["id"])), right=False, style="bold"),
    TopColumn("NAME", 14, lambda row: _name(row, "name"), right=False, wide=True),
    TopColumn("CLIENT", 11, lambda row: _name(row, "client"), 2, right=False, wide=True),
    TopColumn("STATE", 10, lambda row: text.escaped(str(row["state"])), 3, right=False),
    TopColumn(
        "BUSY", 6, lambda row: number_format.percent(row["recent_us_per_s"] / 1e6), sort="recent"
    ),
    TopColumn("MSG/S", 7, lambda row: number_format.count(row["recent_per_s"])),
    TopColumn("BOX", 5, lambda row: number_format.count(row["mailbox"]), 1, sort="mailbox"),
    TopColumn("HIGH", 6, lambda row: number_format.count(row["high_water"]), 2, sort="high_water"),
    TopColumn("HANDLED", 8, lambda row: number_format.count(row["handled"]), 4, sort="handled"),
    TopColumn("WORKED", 8, _busy, 9, sort="busy"),
    TopColumn("LAST", 5, _last_active, 8, sort="last_active"),
    TopColumn("DROPS", 5, lambda row: _of_history(row, "dropped"), 3),
    TopColumn("RECONN", 6, _reconnects, 5),
    TopColumn("TAKEOV", 6, lambda row: _of_history(row, "takeovers"), 6),
    TopColumn("LAST END", 15, _last_end, 7, right=False),
)
"""Columns of a row of ``actors``; ``now_ms`` in it is the time of the reply."""

ACTORS_OF_LOGS = (
    ACTORS[0],
    TopColumn("LOG", 3, lambda row: text.escaped(row["short_log"]), right=False),
    *ACTORS[1:],
)
"""The same for actors of several logs."""


def _rate(row: Row, name: str) -> Any:
    return None if row["rates"] is None else getattr(row["rates"], name)


def _messages(row: Row, name: str) -> str:
    rate = _rate(row, name)
    return number_format.count(None if rate is None else sum(rate))


def _p99(row: Row, name: str) -> str:
    percentiles = _rate(row, name)
    return number_format.figure_duration(None if percentiles is None else percentiles.p99)


def _state_of_log(row: Row) -> str:
    status = row["status"]
    if status is None:
        return "no answer"
    return "ready" if status["ready"] else "not ready"


def _up(row: Row) -> str:
    status = row["status"]
    if status is None:
        return number_format.NOTHING
    return number_format.age_text(status["time_ms"] - status["started_ms"])


def _of_status(show: Callable[[float | None], str], part: str, key: str) -> Callable[[Row], str]:
    """Return a function that shows a figure of a log's status, or nothing if there is none."""
    return lambda row: show(((row["status"] or {}).get(part) or {}).get(key))


_counted = partial(_of_status, number_format.count)
_sized = partial(_of_status, number_format.figure_size)

LOGS = (
    TopColumn("LOG", 12, lambda row: text.name(row["log"]), right=False, wide=True, style="bold"),
    TopColumn("STATE", 9, _state_of_log, right=False),
    TopColumn("CPU", 5, lambda row: number_format.percent(_rate(row, "cpu"))),
    TopColumn("IN/S", 6, lambda row: _messages(row, "messages_in")),
    TopColumn("OUT/S", 6, lambda row: _messages(row, "messages_out")),
    TopColumn("GATE", 7, lambda row: _p99(row, "commit"), 1),
    TopColumn("LOOP", 7, lambda row: _p99(row, "lag"), 1),
    TopColumn("OPEN", 6, _counted("connections", "open")),
    TopColumn("QUEUED", 6, _counted("census", "queued"), 1),
    TopColumn("INFLIGHT", 8, _counted("census", "in_flight"), 3),
    TopColumn("SESSIONS", 8, _counted("sessions", "total"), 4),
    TopColumn("MEMORY", 8, _sized("process", "rss"), 2),
    TopColumn("STREAM", 8, _sized("log", "stream_bytes"), 2),
    TopColumn("UP", 5, _up, 2),
)
"""Columns of a log: its ``status`` and ``rates``, or None."""

TOPICS = (
    TopColumn("TOPIC", 16, lambda row: _name(row, "topic"), right=False, wide=True),
    TopColumn("MSG/S", 7, lambda row: number_format.count(row["rate"]), sort="rate"),
    TopColumn("SHARE", 6, lambda row: number_format.percent(row["share"]), 1),
)
"""Columns of a topic and its incoming messages."""

ACTOR_SORTS = ("recent", "busy", "handled", "mailbox", "high_water", "last_active")
TOPIC_SORTS = ("rate", "name")


def topic_rows(topics: Sequence[Sequence[Any]], messages_in: float | None) -> list[Row]:
    """Return a row for each of the ``topics`` of a status, busiest first."""
    total = messages_in or 0.0
    return [
        {"topic": topic, "rate": rate, "share": min(1.0, rate / total) if total else None}
        for topic, rate in topics
    ]


def sorted_topics(rows: list[Row], by: str) -> list[Row]:
    """Return rows sorted by a key of :data:`TOPIC_SORTS`."""
    if by == "name":
        return sorted(rows, key=lambda row: str(row["topic"]))
    return sorted(rows, key=lambda row: (-row["rate"], str(row["topic"])))


def holding(rows: list[Row], part: str) -> list[Row]:
    """Return the rows of topics that match a filter; an empty one matches all."""
    if not part:
        return rows
    pattern = as_glob(part)
    return [row for row in rows if fnmatchcase(str(row["topic"]), pattern)]


def as_glob(part: str) -> str:
    """Return a pattern for names that contain ``part``, which may be a pattern itself."""
    return part if any(mark in part for mark in "*?[") else f"*{part}*"
