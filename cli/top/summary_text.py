"""The figures above the tables: rates, latencies, queues."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from typing import TYPE_CHECKING, Any

from cli.common import text
from cli.top import number_format
from cli.top.rate_history import History, spark
from cli.top.styled_text import Line, Role, cells, width_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cli.top.columns import Row
    from cli.top.rates import Percentiles, Rates

WIDE = 170
"""Minimum width for two blocks of figures."""
_LABEL = 9
_CELLS = (12, 12, 13, 13, 12)
_MAX_CELL = 22
_LEFT = 84
"""Width of the first block."""

_SLOW_COMMIT = (0.1, 1.0)
_SLOW_LOOP = (0.05, 0.25)
_MUCH_PENDING = (1 << 20, 16 << 20)
_LITTLE_DISK = (1 << 30, 64 << 20)
_FULL = 0.9
"""Fraction of a limit at which the figure is marked."""


@dataclass(frozen=True, slots=True)
class Frame:
    """The result of one poll, with the history."""

    status: dict[str, Any]
    rates: Rates | None
    history: History
    logs: Sequence[Row] = ()
    """A row for each log, if there are several."""


def header(frame: Frame, where: str, width: int, state: Line, right: str) -> Line:
    """Return the first line: the broker or the logs, ``state``, and ``right`` at the right end."""
    status = frame.status
    line: Line = [("foldmq top", "title")]
    if frame.logs:
        line += [
            ("  ", "label"),
            (text.name(str(status["node"])), "strong"),
            (f", {len(frame.logs)} logs", "plain"),
        ]
    else:
        up = text.duration(status["time_ms"] - status["started_ms"])
        line += [
            ("  node ", "label"),
            (text.name(str(status["node"])), "strong"),
            ("  up ", "label"),
            (up, "plain"),
        ]
    line += [("  ", "plain"), *state]
    free = width - width_of(line) - len(right) - 4
    place = text.escaped(where)
    if free >= len(place):
        line += [("  ", "plain"), (place, "label")]
    return cells((width - len(right), line), (len(right), [(right, "label")]))


def health(status: dict[str, Any]) -> Line:
    """Return the readiness of the broker as text."""
    return [("ready", "good")] if status["ready"] else [("NOT READY", "bad")]


def top_problems(status: dict[str, Any]) -> list[str]:
    """Return the problems reported by the broker."""
    found = [text.escaped(str(reason)) for reason in status["trouble"]]
    trouble = (status.get("log") or {}).get("trouble")
    if trouble and not any(trouble in reason for reason in status["trouble"]):
        found.append(text.escaped(f"log: {trouble}"))
    return found


def top_summary(frame: Frame, width: int) -> list[Line]:
    """Return the figures as lines of ``width`` columns: nine, or five if wide enough."""
    if width < WIDE:
        return [*_curves(frame, width), *_states(frame, width)]
    left, right = _curves(frame, _LEFT), _states(frame, width - _LEFT - 2)
    nothing: Line = []
    return [
        cells((_LEFT + 2, one), (width - _LEFT - 2, other))
        for one, other in zip_longest(left, right, fillvalue=nothing)
    ]


def _curves(frame: Frame, width: int) -> list[Line]:
    """Return lines that end with a curve of their first figure."""
    status, rates, history = frame.status, frame.rates, frame.history
    per_record = rates.events / rates.records if rates and rates.records else None
    lines: list[tuple[str, list[Line]]] = [
        ("in", _traffic(rates and rates.messages_in, rates and rates.bytes_in)),
        ("out", _traffic(rates and rates.messages_out, rates and rates.bytes_out)),
        (
            "gate",
            [
                *_percentiles(rates and rates.commit, _SLOW_COMMIT),
                _pair("rec/s", number_format.count(rates and rates.records)),
                _pair("ev/rec", number_format.count(per_record)),
            ],
        ),
        (
            "loop",
            [
                *_percentiles(rates and rates.lag, _SLOW_LOOP),
                _pair("turn/s", number_format.count(rates and rates.turns)),
                [],
            ],
        ),
        (
            "broker",
            [
                [("cpu ", "label"), (number_format.percent(rates and rates.cpu), "strong")],
                _pair("", number_format.figure_size(status["process"]["rss"])),
                _pair("actors", number_format.count(status["actors"]["total"])),
                _pair("msg/s", number_format.count(rates and rates.handled)),
                _pair("high", number_format.count(status["kernel"]["mailbox_high_water"])),
            ],
        ),
    ]
    return [_row(name, parts, history, width) for name, parts in lines]


def _traffic(by_qos: tuple[float, ...] | None, size: float | None) -> list[Line]:
    total = None if by_qos is None else sum(by_qos)
    split = by_qos or (None,) * 3
    return [
        [(f"{number_format.count(total)}/s", "strong")],
        *(_pair(f"q{qos}", number_format.count(value)) for qos, value in enumerate(split)),
        [(f"{number_format.figure_size(size)}/s", "plain")],
    ]


def _percentiles(found: Percentiles | None, slow: tuple[float, float]) -> list[Line]:
    if found is None:
        return [_pair(name, number_format.NOTHING) for name in ("p99", "p90", "p50")]
    role = _role(found.p99, *slow)
    return [
        [
            ("p99 ", "label"),
            (number_format.figure_duration(found.p99), "strong" if role == "plain" else role),
        ],
        _pair("p90", number_format.figure_duration(found.p90)),
        _pair("p50", number_format.figure_duration(found.p50)),
    ]


def _states(frame: Frame, width: int) -> list[Line]:
    status, rates = frame.status, frame.rates
    connections, sessions = status["connections"], status["sessions"]
    census = status.get("census") or {}
    dropped = None if rates is None else sum(rates.dropped.values())
    return [
        _grid(
            "clients",
            width,
            _limited("open", connections["open"], connections.get("limit")),
            _pair("new", f"{number_format.count(rates and rates.accepted)}/s"),
            _marked("paused", connections["paused"], "warn"),
            _pair("filters", number_format.count(status["subscriptions"])),
        ),
        _grid(
            "sessions",
            width,
            _limited("all", sessions["total"], sessions.get("limit")),
            _pair("connected", number_format.count(sessions["connected"])),
            _pair("passive", number_format.count(sessions["passive"])),
            _pair("retained", number_format.count(status["retained"]["count"])),
        ),
        _grid(
            "waiting",
            width,
            _pair("in flight", number_format.count(census.get("inflight"))),
            _pair("queued", number_format.count(census.get("queued"))),
            _pair("size", number_format.figure_size(census.get("queued_bytes"))),
            _marked("dropped", dropped, "bad", "/s"),
        ),
        _log(status, width),
    ]


def _log(status: dict[str, Any], width: int) -> Line:
    log = status.get("log")
    if not log:
        return _grid("log", width, [("is being read", "warn")])
    pending, free = log["pending_bytes"], log.get("disk_free")
    disk: Role = "plain" if free is None else _role(-free, *(-bound for bound in _LITTLE_DISK))
    return _grid(
        "log",
        width,
        [
            ("pending ", "label"),
            (number_format.figure_size(pending), _role(pending, *_MUCH_PENDING)),
        ],
        _pair("held", number_format.figure_size(log["gated_bytes"])),
        _pair("stream", number_format.figure_size(log.get("stream_bytes"))),
        [("free ", "label"), (number_format.figure_size(free), disk)],
    )


def _row(name: str, parts: list[Line], history: History, width: int) -> Line:
    sized = zip(_CELLS, parts, strict=True)
    curve = spark(history.curve(name), max(0, width - _LABEL - sum(_CELLS) - 1))
    return [*cells((_LABEL, [(name, "label")]), *sized), (" ", "plain"), (curve, "curve")]


def _grid(label: str, width: int, *parts: Line) -> Line:
    """Arrange a label and up to four parts in columns of equal width."""
    each = min(_MAX_CELL, (width - _LABEL) // 4)
    return cells((_LABEL, [(label, "label")]), *((each, part) for part in parts))


def _pair(name: str, value: str) -> Line:
    return [(f"{name} ", "label"), (value, "plain")] if name else [(value, "plain")]


def _marked(name: str, value: float | None, role: Role, unit: str = "") -> Line:
    """Return a figure that should be 0."""
    shown = number_format.count(value) + unit
    return [(f"{name} ", "label"), (shown, role if value else "plain")]


def _limited(name: str, value: int, limit: int | None) -> Line:
    near = bool(limit) and value >= _FULL * float(limit or 0)
    label: Line = [(f"{name} ", "label")] if name else []
    rest: Line = [(f" of {number_format.count(limit)}", "warn")] if near else []
    return [*label, (number_format.count(value), "warn" if near else "strong"), *rest]


def _role(value: float, warn: float, bad: float) -> Role:
    if value >= bad:
        return "bad"
    return "warn" if value >= warn else "plain"
