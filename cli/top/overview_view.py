"""The first view: figures, curves, the busiest actors and topics."""

import time
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Container
from textual.widgets import DataTable, Input, Static

from cli.top.base_view import RowTable, View
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
from cli.top.figures import charts, top_summary
from cli.top.watched_broker import WatchedBroker

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
        Binding("tab,shift+tab,left,right", "other", "table", key_display="Tab"),
        Binding("l", "logs", "logs"),
        Binding("slash", "filter", "filter", key_display="/"),
        Binding("s", "sort", "sort"),
        Binding("escape", "clear", show=False),
    ]
    AUTO_FOCUS = "#actors"
    topics = True

    def __init__(self, monitor: WatchedBroker, sort: str) -> None:
        super().__init__(monitor)
        self._filters = {"actors": "", "topics": ""}
        self._sorts = {"actors": sort, "topics": TOPIC_SORTS[0]}
        self._asked = "actors"
        self._summary, self._charts = Static(id="summary"), Static(id="charts")
        self._tables = {
            "actors": RowTable(
                ACTORS, lambda row: f"{row.get('log', '')}\0{row['id']}", id="actors"
            ),
            "topics": RowTable(TOPICS, lambda row: str(row["topic"]), id="topics"),
        }
        self._line = Input(id="filter", compact=True, select_on_focus=False)
        self._line.display = False
        self._due = 0.0
        self._several = False
        """Whether there are several logs."""

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
        pause = min(_SPARE * (ended - began), _LONGEST)
        self._due = ended + pause - self.monitor.interval
        frame = self.monitor.frame
        now_ms = frame.status["time_ms"] if frame is not None else None
        several = self.monitor.queries.several
        self._tables["actors"].choice = ACTORS_OF_LOGS if several else ACTORS
        self._tables["actors"].fill([{**row, "now_ms": now_ms} for row in rows])

    def show(self) -> None:
        """Show the current data."""
        super().show()
        frame = self.monitor.frame
        if frame is None:
            return
        width, height = self.size
        if self._several != bool(frame.logs):
            self._several = bool(frame.logs)
            self.refresh_bindings()
        self.set_class(width >= _BESIDE, "beside")
        self._summary.update(top_summary(frame, width))
        self._charts.display = height >= _TALL
        if height >= _TALL:
            history, interval = frame.history, self.monitor.interval
            self._charts.update(charts(history, width, height // 5, interval))
        self._show_topics()
        for name, table in self._tables.items():
            part = self._filters[name]
            table.sorted_by, table.filter = self._sorts[name], part
            table.hint = f"no matching {name}" if part else f"no {name} yet"
            if name == "topics" and not self.monitor.queries.topics_fit:
                table.hint = "their names are too long for a reply"
            table.draw()

    def _show_topics(self) -> None:
        frame, table = self.monitor.frame, self._tables["topics"]
        # While another view was shown, topics were not requested.
        if frame is None or "topics" not in frame.status:
            return
        came = None if frame.rates is None else sum(frame.rates.messages_in)
        rows = sorted_topics(topic_rows(frame.status["topics"], came), self._sorts["topics"])
        table.fill(holding(rows, self._filters["topics"]))

    @property
    def _front(self) -> str:
        """The table with the focus."""
        return "topics" if self._tables["topics"].has_focus else "actors"

    def on_data_table_row_selected(self, selected: DataTable.RowSelected) -> None:
        """Open an actor or a topic."""
        name = str(selected.data_table.id)
        row = self._tables[name].marked
        if row is None:
            return
        if name == "actors":
            page = ActorPage(self.monitor, str(row["id"]), str(row.get("log", "")))
            self.app.push_screen(page)
        else:
            self.app.push_screen(TopicPage(self.monitor, str(row["topic"])))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether a key has its action: there may be one log only."""
        del parameters
        return self._several or action != "logs"

    def action_logs(self) -> None:
        """Show the figures of each log."""
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
