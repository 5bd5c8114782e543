"""The first view: figures, curves, the busiest actors and topics."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import Input

from cli.common import text
from cli.top import number_format
from cli.top.base_view import View
from cli.top.columns import (
    ACTOR_SORTS,
    ACTORS,
    ACTORS_OF_LOGS,
    TOPIC_SORTS,
    TOPICS,
    as_glob,
    holding,
    sorted_topics,
    topic_rows,
)
from cli.top.detail_views import ActorPage, LogsPage, TopicPage
from cli.top.rate_history import History, area
from cli.top.styled_text import Line, cells
from cli.top.summary_text import top_summary
from cli.top.widgets import Lines, RowTable

if TYPE_CHECKING:
    from collections.abc import Callable

    from textual.app import ComposeResult

    from cli.top.watched_broker import WatchedBroker

_GAP = 2
_NARROWEST = 36


class _CurveText(NamedTuple):
    name: str
    title: str
    show: Callable[[float | None], str]


_CURVES = (
    _CurveText("in", "messages in/s", number_format.count),
    _CurveText("out", "messages out/s", number_format.count),
    _CurveText("gate", "gate p99", number_format.figure_duration),
    _CurveText("waiting", "messages queued", number_format.count),
)


def charts(history: History, width: int, height: int, interval: float) -> list[Line]:
    """Return the curves that fit into ``width`` columns, each with its title in the first line.

    ``interval`` is the time between two values in seconds.
    """
    number = min(len(_CURVES), max(1, (width + _GAP) // (_NARROWEST + _GAP)))
    each = (width + _GAP) // number - _GAP
    drawn = [_chart(history, curve, each, height, interval) for curve in _CURVES[:number]]
    return [cells(*((each + _GAP, line) for line in lines)) for lines in zip(*drawn, strict=True)]


def _chart(
    history: History, curve: _CurveText, width: int, height: int, interval: float
) -> list[Line]:
    values = history.curve(curve.name)[-width:]
    most = max((value for value in values if value is not None), default=None)
    shown = text.duration(round(len(values) * interval * 1000))
    title: Line = [
        (curve.title, "label"),
        (f"  most {curve.show(most)}", "plain"),
        (f" in {shown}", "label"),
    ]
    lines: list[Line] = [[(line, "curve")] for line in area(values, width, height - 1)]
    return [title, *lines]


_BESIDE = 110
"""Minimum width for tables side by side."""
_TALL = 36
"""Minimum height for curves, which take a fifth of it."""
_SPARE = 9
"""A slow list is requested again after this multiple of its duration, ..."""
_LONGEST = 10.0
"""... but at most after this many seconds."""


class Overview(View):
    """The overview of a broker."""

    DEFAULT_CSS = """
    Overview #tables { layout: vertical; height: 1fr; }
    Overview.beside #tables { layout: horizontal; }
    Overview #actors { width: 1fr; height: 1fr; }
    Overview #topics { width: 1fr; height: 1fr; }
    Overview #actors:focus, Overview #topics:focus { height: 2fr; }
    Overview.beside #actors:focus, Overview.beside #topics:focus { height: 1fr; }
    Overview.beside #actors { width: 2fr; margin-right: 2; }
    Overview.beside #topics { width: 1fr; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", show=False),
        Binding("l", "logs", show=False),
        Binding("s", "sort", show=False),
        Binding("tab,shift+tab,left,right", "other", show=False),
        Binding("escape", "clear", show=False),
    ]
    AUTO_FOCUS = "#actors"
    topics = True
    keys: tuple[tuple[str, str], ...] = (
        ("↑↓", "move"),
        ("Tab", "table"),
        ("Enter", "open"),
        ("/", "filter"),
        ("s", "sort"),
        ("p", "pause"),
        ("?", "help"),
        ("q", "quit"),
    )

    def __init__(self, monitor: WatchedBroker, sort: str) -> None:
        super().__init__(monitor)
        self._filters = {"actors": "", "topics": ""}
        self._sorts = {"actors": sort, "topics": TOPIC_SORTS[0]}
        self._asked = "actors"
        self._summary, self._charts = Lines(id="summary"), Lines(id="charts")
        self._tables = {
            "actors": RowTable(
                ACTORS, lambda row: f"{row.get('log', '')}\0{row['id']}", id="actors"
            ),
            "topics": RowTable(TOPICS, lambda row: str(row["topic"]), id="topics"),
        }
        self._line = Input(id="filter", compact=True, select_on_focus=False)
        self._line.display = False
        self._due = 0.0

    def body(self) -> ComposeResult:
        """Yield figures, curves, tables, and the filter line."""
        yield self._summary
        yield self._charts
        yield Container(*self._tables.values(), id="tables")
        yield self._line

    async def load(self) -> None:
        """Request the busiest actors, of all logs."""
        began = time.monotonic()
        if began < self._due:
            return
        part = self._filters["actors"]
        by = self._sorts["actors"]
        rows = await self.monitor.queries.actors(by, as_glob(part) if part else None)
        ended = time.monotonic()
        # With 100,000 actors this takes the broker a tenth of a second.
        rest = min(_SPARE * (ended - began), _LONGEST)
        self._due = ended + rest - self.monitor.interval
        frame = self.monitor.frame
        now_ms = frame.status["time_ms"] if frame is not None else None
        several = self.monitor.queries.several
        self._tables["actors"].columns = ACTORS_OF_LOGS if several else ACTORS
        self._tables["actors"].rows = [{**row, "now_ms": now_ms} for row in rows]

    def show(self) -> None:
        """Show the current data."""
        super().show()
        frame = self.monitor.frame
        if frame is None:
            return
        width, height = self.size
        self.keys = _KEYS_OF_LOGS if frame.logs else Overview.keys
        self.set_class(width >= _BESIDE, "beside")
        self._summary.lines = top_summary(frame, width)
        self._charts.lines = (
            charts(frame.history, width, height // 5, self.monitor.interval)
            if height >= _TALL
            else []
        )
        self._show_topics()
        for name, table in self._tables.items():
            part = self._filters[name]
            table.sort, table.filter = self._sorts[name], part
            table.hint = f"no matching {name}" if part else f"no {name} yet"
        if not self.monitor.queries.topics_fit:
            self._tables["topics"].hint = "their names are too long for a reply"

    def _show_topics(self) -> None:
        frame, table = self.monitor.frame, self._tables["topics"]
        # While another view was shown, topics were not requested.
        if frame is None or "topics" not in frame.status:
            return
        came = None if frame.rates is None else sum(frame.rates.messages_in)
        rows = sorted_topics(topic_rows(frame.status["topics"], came), self._sorts["topics"])
        table.rows = holding(rows, self._filters["topics"])

    @property
    def _front(self) -> str:
        """The table with the focus."""
        return "topics" if self._tables["topics"].has_focus else "actors"

    def on_row_table_chosen(self, chosen: RowTable.Chosen) -> None:
        """Open an actor or a topic."""
        if chosen.table is self._tables["actors"]:
            log = str(chosen.row.get("log", ""))
            self.app.push_screen(ActorPage(self.monitor, str(chosen.row["id"]), log))
        else:
            self.app.push_screen(TopicPage(self.monitor, str(chosen.row["topic"])))

    def action_logs(self) -> None:
        """Show the figures of each log, if there are several."""
        if self.monitor.frame is not None and self.monitor.frame.logs:
            self.app.push_screen(LogsPage(self.monitor))

    def action_other(self) -> None:
        """Move the focus to the other table."""
        self.set_focus(self._tables["actors" if self._front == "topics" else "topics"])

    def action_sort(self) -> None:
        """Sort the current table by its next column."""
        name = self._front
        orders = ACTOR_SORTS if name == "actors" else TOPIC_SORTS
        here = orders.index(self._sorts[name])
        self._sorts[name] = orders[(here + 1) % len(orders)]
        self._show_from_top(name)

    def action_filter(self) -> None:
        """Ask for a filter of the current table."""
        self._asked = self._front
        line = self._line
        line.placeholder = f"{self._asked} with ...    Enter: show these   Escape: show all"
        line.value = self._filters[self._asked]
        # Not by a class: it must be visible and focused before the next key.
        line.display = True
        self.set_focus(line)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        """Show the rows that match the filter."""
        self._filter(self._asked, submitted.value.strip())

    def action_clear(self) -> None:
        """Show all rows again."""
        typing = self._line.has_focus
        self._filter(self._asked if typing else self._front, "")

    def _filter(self, name: str, part: str) -> None:
        self._line.display = False
        self.set_focus(self._tables[name])
        if part != self._filters[name]:
            self._filters[name] = part
            self._show_from_top(name)

    def _show_from_top(self, name: str) -> None:
        """Show a table from its first row after a change of order or filter."""
        self._tables[name].forget()
        self._due = 0.0
        self.show()
        if name == "actors":
            self.monitor.wanted.set()


_KEYS_OF_LOGS = (
    *Overview.keys[1:3],
    ("l", "logs"),
    *Overview.keys[3:],
)
"""The keys with several logs; all do not fit into 80 columns."""
