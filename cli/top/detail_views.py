"""The detail views: an actor, a session, the receivers of a topic, the logs."""

import time
from collections.abc import Iterable
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Static

from cli.commands.actor_page import (
    actor_lines,
    connection_of,
    connection_rates,
    live_session_lines,
)
from cli.commands.receivers import outcome_lines, outcome_text
from cli.common import text
from cli.logs.broker_client import Refused
from cli.logs.next_commands import completed
from cli.top.base_view import Page, RowTable, Scroller, as_text
from cli.top.columns import LOGS, TopColumn
from cli.top.watched_broker import Row, WatchedBroker
from projections.views.session_view import session_from

_NAME_SHOWN = 400


class TextPage(Page):
    """Lines updated with every poll; the first one is the heading.

    They are about something in ``log``, if there are several logs.
    """

    AUTO_FOCUS = "#text"

    def __init__(self, monitor: WatchedBroker, log: str = "") -> None:
        super().__init__(monitor)
        self.log_name = log
        self._text = Static()
        self._lines: list[str] = []

    def body(self) -> ComposeResult:
        """Return the lines."""
        yield Scroller(self._text, id="text")

    def say(self, lines: Iterable[str]) -> None:
        """Show lines, which must be printable."""
        self._lines = list(lines)
        if self.log_name:
            self._lines[0] = f"{self._lines[0]}, log {text.name(self.log_name)}"
        self._draw()

    def _draw(self) -> None:
        self._text.update(as_text(self._lines, self.size.width - 1))

    def show(self) -> None:
        """Show the current data in the current width."""
        super().show()
        self._draw()


class ActorPage(TextPage):
    """An actor in full, as in ``foldmq actors show``."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "session", "its session", key_display="Enter"),
    ]

    def __init__(self, monitor: WatchedBroker, actor: str, log: str = "") -> None:
        super().__init__(monitor, log)
        self._actor = actor
        self.traced = {"actor": actor}
        self._client: str | None = None
        self._before: tuple[float, dict[str, Any]] | None = None

    async def load(self) -> None:
        """Request the actor."""
        try:
            answer = await self.monitor.queries.actor(self._actor, self.log_name)
        except Refused as refusal:
            self.say([f"{self._actor} no longer exists", f"  {refusal}"])
            return
        row, detail, now = answer["actor"], answer["detail"], time.monotonic()
        is_session = row["type"] == "session"
        connection = detail["connection"] if is_session else connection_of(answer)
        rates = None
        if self._before is not None and connection is not None:
            then, before = self._before
            rates = connection_rates(before, connection, now - then)
        self._client = row["client"]
        self._before = None if connection is None else (now, connection)
        if is_session:
            self.say(live_session_lines(session_from(detail), rates))
        else:
            self.say(actor_lines(answer, rates))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether a key has its action; the actor of a session shows it already."""
        if action == "session" and self._actor.startswith("session:"):
            return False
        return super().check_action(action, parameters)

    def action_session(self) -> None:
        """Open the session of the actor."""
        if self._client is not None:
            self.app.push_screen(SessionPage(self.monitor, self._client, self.log_name))


class SessionPage(TextPage):
    """A session in full, connected or not."""

    def __init__(self, monitor: WatchedBroker, client: str, log: str = "") -> None:
        super().__init__(monitor, log)
        self._client = client
        self.traced = {"client": client}

    async def load(self) -> None:
        """Request the session."""
        try:
            answer = await self.monitor.queries.session(self._client, self.log_name)
        except Refused as refusal:
            self.say([f"session {_short(self._client)} no longer exists", f"  {refusal}"])
            return
        self.say(live_session_lines(session_from(answer), None))


RECEIVERS = (
    TopColumn("CLIENT", 22, lambda row: _short(row["client"]), right=False, wide=True),
    TopColumn("FILTER", 10, lambda row: _short(row["filter"]), right=False, wide=True),
    TopColumn("QOS", 3, lambda row: str(row["qos"])),
    TopColumn("OUTCOME", 16, outcome_text, right=False, wide=True),
)
"""Columns of a subscription that matches a topic."""
RECEIVERS_OF_LOGS = (
    TopColumn("LOG", 3, lambda row: text.escaped(row["short_log"]), right=False),
    *RECEIVERS,
)


class TopicPage(Page):
    """The receivers of a topic."""

    DEFAULT_CSS = """
    TopicPage #outcome { margin-bottom: 1; }
    """
    AUTO_FOCUS = "#receivers"

    def __init__(self, monitor: WatchedBroker, topic: str) -> None:
        super().__init__(monitor)
        self._topic = topic
        self.traced = {"topic": topic}
        self._outcome = Static(id="outcome")
        self._table = RowTable(RECEIVERS, _receiver, id="receivers")
        self._lines: list[str] = []
        self._many = False

    def body(self) -> ComposeResult:
        """Yield a summary and the table."""
        yield self._outcome
        yield self._table

    async def load(self) -> None:
        """Request the matching subscriptions; only once if there are many."""
        if self._many:
            return
        try:
            answer = await self.monitor.queries.receivers(self._topic)
        except Refused as refusal:
            self._lines = [_short(self._topic), f"  {refusal}"]
            return
        self._many = bool(answer["more"])
        rows = answer["rows"]
        self._lines = outcome_lines(self._topic, rows, answer["retained"])
        if self._many:
            command = completed("foldmq subscriptions")
            self._lines.append(f"only the first {len(rows):,}; {command} lists all")
        several = self.monitor.queries.several
        self._table.choice = RECEIVERS_OF_LOGS if several else RECEIVERS
        self._table.hint = "no subscribers"
        self._table.fill(rows)

    def show(self) -> None:
        """Show the current data."""
        super().show()
        self._outcome.update(as_text(self._lines, self.size.width))

    def on_data_table_row_selected(self, _selected: DataTable.RowSelected) -> None:
        """Open the session of the receiver."""
        row = self._table.marked
        if row is not None:
            log = str(row.get("log", ""))
            self.app.push_screen(SessionPage(self.monitor, row["client"], log))


class LogsPage(Page):
    """The figures of each log."""

    AUTO_FOCUS = "#logs"

    def __init__(self, monitor: WatchedBroker) -> None:
        super().__init__(monitor)
        self._table = RowTable(LOGS, lambda row: str(row["log"]), id="logs")
        self._table.opens = False

    def body(self) -> ComposeResult:
        """Yield the table."""
        yield self._table

    def show(self) -> None:
        """Show the figures of the last poll."""
        super().show()
        if self.monitor.frame is not None:
            self._table.fill(list(self.monitor.frame.logs))


def _short(chosen: str) -> str:
    return text.name(chosen, _NAME_SHOWN)


def _receiver(row: Row) -> str:
    return f"{row.get('log', '')}\0{row['client']}\0{row['filter']}"
