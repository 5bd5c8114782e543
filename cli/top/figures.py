"""The top line, and the figures and curves above the tables, as renderables of rich.

All of them are ``rich.text.Text``, in which nothing is interpreted as markup: names chosen by
clients pass through :func:`cli.common.text.name`, which escapes everything unprintable.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from cli.common import text
from cli.top import number_format
from cli.top.rates import Percentiles
from cli.top.watched_broker import Frame, History

LABEL, STRONG, WARN, BAD = "dim", "bold", "bold yellow", "bold red"
TITLE, CURVE = "bold cyan", "cyan"

WIDE = 170
"""Minimum width for two blocks of figures."""
_LABEL_CELLS = 8
_FIGURE_CELLS = (11, 11, 12, 12, 12)
_MAX_STATE_CELLS = 21
_LEFT = 84
"""Width of the first block."""
_CHART_CELLS = 36
"""Minimum width of a curve of several lines."""
_CHART_GAP = 2

_SLOW_COMMIT = (0.1, 1.0)
_SLOW_LOOP = (0.05, 0.25)
_MUCH_PENDING = (1 << 20, 16 << 20)
_LITTLE_DISK = (1 << 30, 64 << 20)
_FULL = 0.9
"""Fraction of a limit at which the figure is marked."""

_FEW_DESTINATIONS = 3
"""Destinations of the outbox with a line, those with problems first."""

_LEVELS = " ▁▂▃▄▅▆▇█"
_STEPS = len(_LEVELS) - 1
_UNKNOWN = -1
_GAP = "·"
_CHARTS: tuple[tuple[str, str, Callable[[float | None], str]], ...] = (
    ("in", "messages in/s", number_format.count),
    ("out", "messages out/s", number_format.count),
    ("gate", "gate p99", number_format.figure_duration),
    ("waiting", "messages queued", number_format.count),
)
"""Name, title and format of the curves of several lines."""


def header(frame: Frame, where: str, width: int, state: Text, right: str) -> Table:
    """Return the first line: the broker or the logs, ``state``, and ``right`` at the right end."""
    status = frame.status
    line = Text.assemble(("foldmq top", TITLE), no_wrap=True, overflow="ellipsis")
    node = text.name(str(status["node"]))
    if frame.logs:
        line = Text.assemble(line, "  ", (node, STRONG), f", {len(frame.logs)} logs")
    else:
        up = text.duration(status["time_ms"] - status["started_ms"])
        line = Text.assemble(line, ("  node ", LABEL), (node, STRONG), ("  up ", LABEL), up)
    line = Text.assemble(line, "  ", state, no_wrap=True, overflow="ellipsis")
    place = text.escaped(where)
    if width - line.cell_len - len(right) - 4 >= len(place):
        line.append(f"  {place}", LABEL)
    row = Table.grid(padding=(0, 1))
    row.add_column(width=max(1, width - len(right) - 1))
    row.add_column(width=len(right))
    row.add_row(line, Text(right, LABEL, no_wrap=True))
    return row


def health(status: dict[str, Any]) -> Text:
    """Return the readiness of the broker as text."""
    return Text("ready", "green") if status["ready"] else Text("NOT READY", BAD)


def top_problems(status: dict[str, Any]) -> list[str]:
    """Return the problems reported by the broker."""
    problems = [text.escaped(str(reason)) for reason in status["trouble"]]
    trouble = (status.get("log") or {}).get("trouble")
    if trouble and not any(trouble in reason for reason in status["trouble"]):
        problems.append(text.escaped(f"log: {trouble}"))
    return problems


def top_summary(frame: Frame, width: int) -> RenderableType:
    """Return the figures as lines of ``width`` columns: nine, or five if wide enough.

    Each of the few destinations that are shown takes one more.
    """
    if width < WIDE:
        return Group(_traffic(frame, width), _states(frame, width))
    both = Table.grid(padding=(0, 2))
    both.add_column(width=_LEFT)
    both.add_column(width=width - _LEFT - 2)
    both.add_row(_traffic(frame, _LEFT), _states(frame, width - _LEFT - 2))
    return both


def _grid(widths: Iterable[int]) -> Table:
    """Return lines of cells of these widths, behind a label."""
    grid = Table.grid(padding=(0, 1))
    for width in (_LABEL_CELLS, *widths):
        grid.add_column(width=width, no_wrap=True, overflow="ellipsis")
    return grid


def _traffic(frame: Frame, width: int) -> Table:
    """Return lines that end with a curve of their first figure."""
    status, rates = frame.status, frame.rates
    per_record = rates.events / rates.records if rates and rates.records else None
    count, size = number_format.count, number_format.figure_size
    curve_cells = width - _LABEL_CELLS - sum(_FIGURE_CELLS) - len(_FIGURE_CELLS) - 1
    grid = _grid([*_FIGURE_CELLS, *([curve_cells] if curve_cells > 0 else [])])
    lines: dict[str, list[Text]] = {
        "in": _messages(rates and rates.messages_in, rates and rates.bytes_in),
        "out": _messages(rates and rates.messages_out, rates and rates.bytes_out),
        "gate": [
            *_percentiles(rates and rates.commit, _SLOW_COMMIT),
            _pair("rec/s", count(rates and rates.records)),
            _pair("ev/rec", count(per_record)),
        ],
        "loop": [
            *_percentiles(rates and rates.lag, _SLOW_LOOP),
            _pair("turn/s", count(rates and rates.turns)),
            Text(),
        ],
        "broker": [
            _pair("cpu", number_format.percent(rates and rates.cpu), STRONG),
            Text(size(status["process"]["rss"])),
            _pair("actors", count(status["actors"]["total"])),
            _pair("msg/s", count(rates and rates.handled)),
            _pair("high", count(status["kernel"]["mailbox_high_water"])),
        ],
    }
    for name, cells in lines.items():
        curve = [Text(spark(frame.history.curve(name), curve_cells), CURVE)]
        grid.add_row(Text(name, LABEL), *cells, *(curve if curve_cells > 0 else []))
    return grid


def _messages(by_qos: tuple[float, ...] | None, size: float | None) -> list[Text]:
    total = None if by_qos is None else sum(by_qos)
    split = by_qos or (None,) * 3
    return [
        Text(f"{number_format.count(total)}/s", STRONG),
        *(_pair(f"q{qos}", number_format.count(value)) for qos, value in enumerate(split)),
        Text(f"{number_format.figure_size(size)}/s"),
    ]


def _percentiles(percentiles: Percentiles | None, slow: tuple[float, float]) -> list[Text]:
    if percentiles is None:
        return [_pair(name, number_format.NOTHING) for name in ("p99", "p90", "p50")]
    shown = number_format.figure_duration
    return [
        _pair("p99", shown(percentiles.p99), _style(percentiles.p99, *slow) or STRONG),
        _pair("p90", shown(percentiles.p90)),
        _pair("p50", shown(percentiles.p50)),
    ]


def _states(frame: Frame, width: int) -> Table:
    status, rates = frame.status, frame.rates
    connections, sessions = status["connections"], status["sessions"]
    census = status.get("census") or {}
    dropped = None if rates is None else sum(rates.dropped.values())
    count, size = number_format.count, number_format.figure_size
    grid = _grid([min(_MAX_STATE_CELLS, (width - _LABEL_CELLS - 1) // 4 - 1)] * 4)
    paused = connections["paused"]
    lines: dict[str, list[Text]] = {
        "clients": [
            _limited("open", connections["open"], connections.get("limit")),
            _pair("new", f"{count(rates and rates.accepted)}/s"),
            _pair("paused", count(paused), WARN if paused else ""),
            _pair("filters", count(status["subscriptions"])),
        ],
        "sessions": [
            _limited("all", sessions["total"], sessions.get("limit")),
            _pair("connected", count(sessions["connected"])),
            _pair("frozen", count(sessions["frozen"])),
            _pair("retained", count(status["retained"]["count"])),
        ],
        "waiting": [
            _pair("in flight", count(census.get("in_flight"))),
            _pair("queued", count(census.get("queued"))),
            _pair("size", size(census.get("queued_bytes"))),
            _pair("dropped", f"{count(dropped)}/s", BAD if dropped else ""),
        ],
        "log": [Text("is being read", WARN)],
    }
    log = status.get("log")
    if log:
        pending, free = log["pending_bytes"], log.get("disk_free")
        disk = "" if free is None else _style(-free, *(-bound for bound in _LITTLE_DISK))
        lines["log"] = [
            _pair("pending", size(pending), _style(pending, *_MUCH_PENDING)),
            _pair("held", size(log["gated_bytes"])),
            _pair("stream", size(log.get("stream_bytes"))),
            _pair("free", size(free), disk),
        ]
    for name, cells in lines.items():
        grid.add_row(Text(name, LABEL), *cells)
    worst = sorted(status.get("destinations") or (), key=_how_bad, reverse=True)
    for number, row in enumerate(worst[:_FEW_DESTINATIONS]):
        grid.add_row(Text("" if number else "outbox", LABEL), *_destination(row))
    return grid


def _how_bad(row: Mapping[str, Any]) -> tuple[bool, int]:
    return row["state"] not in ("sending", "starting"), row["behind_ms"]


def _destination(row: Mapping[str, Any]) -> list[Text]:
    """Return the cells of a destination of the outbox."""
    behind_ms, refused, losses = row["behind_ms"], row["refused"], row["losses"]
    stopped, _ = _how_bad(row)
    name = text.name(row["name"])
    if "log" in row:
        name += f" {row['log'].rpartition('-')[2]}"
    return [
        Text.assemble((name, WARN if stopped else STRONG), f" {row['state']}"),
        _pair("behind", text.duration(behind_ms) if behind_ms else "nothing"),
        _pair("refused", number_format.count(refused), WARN if refused else ""),
        _pair("lost", number_format.count(losses), BAD if losses else ""),
    ]


def _pair(name: str, value: str, style: str = "") -> Text:
    return Text.assemble((f"{name} ", LABEL), (value, style))


def _limited(name: str, value: int, limit: int | None) -> Text:
    near = bool(limit) and value >= _FULL * float(limit or 0)
    shown = _pair(name, number_format.count(value), WARN if near else STRONG)
    return shown.append(f" of {number_format.count(limit)}", WARN) if near else shown


def _style(value: float, warn: float, bad: float) -> str:
    if value >= bad:
        return BAD
    return WARN if value >= warn else ""


# Curves.


def charts(history: History, width: int, height: int, interval: float) -> Table:
    """Return the curves that fit into ``width`` columns, each with its title in the first line.

    ``interval`` is the time between two values in seconds.
    """
    number = min(len(_CHARTS), max(1, (width + _CHART_GAP) // (_CHART_CELLS + _CHART_GAP)))
    cells = (width + _CHART_GAP) // number - _CHART_GAP
    grid = Table.grid(padding=(0, _CHART_GAP))
    drawn: list[Text] = []
    for name, title, shown in _CHARTS[:number]:
        grid.add_column(width=cells, no_wrap=True)
        values = history.curve(name)[-cells:]
        most = max((value for value in values if value is not None), default=None)
        span = text.duration(round(len(values) * interval * 1000))
        lines = "\n".join(area(values, cells, height - 1))
        about = f"  most {shown(most)}"
        drawn.append(
            Text.assemble((title, LABEL), about, (f" in {span}", LABEL), "\n", (lines, CURVE))
        )
    grid.add_row(*drawn)
    return grid


def spark(curve: list[float | None], width: int) -> str:
    """Draw the last ``width`` values on one line, right-aligned and scaled to the highest."""
    (line,) = area(curve, width, 1)
    return line


def area(curve: list[float | None], width: int, height: int) -> list[str]:
    """Draw the last ``width`` values as an area of ``height`` lines, top line first.

    Values above 0 are at least a thin line; unknown values are dots.
    """
    shown = curve[-width:] if width > 0 else []
    most = max((value for value in shown if value is not None), default=0.0)
    levels = [_level(value, most, height * _STEPS) for value in shown]
    blank = " " * (width - len(shown))
    return [
        blank + "".join(_block(level, floor) for level in levels)
        for floor in range((height - 1) * _STEPS, -1, -_STEPS)
    ]


def _level(value: float | None, most: float, steps: int) -> int:
    if value is None:
        return _UNKNOWN
    return max(1, round(value / most * steps)) if value > 0 else 0


def _block(level: int, floor: int) -> str:
    """Return the part of a column of ``level`` steps in the line that begins above ``floor``."""
    if level == _UNKNOWN:
        return _LEVELS[0] if floor else _GAP
    return _LEVELS[min(max(level - floor, 0), _STEPS)]
