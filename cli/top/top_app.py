"""``foldmq top``: the terminal application, which polls the broker and updates its views."""

import asyncio
import time
from typing import Any, ClassVar

from textual.app import App
from textual.binding import Binding, BindingType
from textual.screen import Screen

from cli.logs.broker_client import NoLiveBroker
from cli.logs.reconnecting_client import NotUnderstood, ReconnectingClient, understood
from cli.top.base_view import View
from cli.top.detail_views import TextPage
from cli.top.overview_view import Overview
from cli.top.watched_broker import WatchedBroker
from protocol.errors import FoldmqError

TEXT = """\
Keys

  arrows, j k     move, scroll; also Page Up, Page Down, Home and End
  Tab             switch to the other table
  Enter           open an actor or a topic; from there, its session
  t               on a page: live trace of what it receives and sends
  /               filter names by letters, or by a pattern: pump-*
  s               sort by the next column
  l               figures of each log, if there are several
  p               pause or resume
  Esc             back; on the first view: remove the filter
  q               quit

Figures

  in, out         messages per second, by QoS; network traffic in bytes
  gate            time until records are on disk: messages at QoS 1 and 2 are
                  acknowledged after that; records per second, events per
                  record
  loop            delay of timers on the event loop; turns per second
  broker          CPU usage (100% is one core), memory, actors, messages that
                  they handle, the longest mailbox since the start
  clients         connections, new connections, paused connections,
                  subscribed filters
  sessions        all, connected, frozen (offline, without an actor);
                  retained messages
  waiting         sent and not acknowledged; queued; dropped
  log             bytes not on disk yet, bytes to clients held back until
                  then, size of the stream, free disk space
  BUSY            recent CPU usage of an actor, of one core
  BOX, HIGH       messages in its mailbox, now and at most

Each curve shows the first figure of its line; a dot is a poll without a
reply. Figures that need attention are yellow or red. The terminal keeps the
mouse, so that you can select and copy names.
"""


class Help(TextPage):
    """Explains the keys and figures."""

    def __init__(self, monitor: WatchedBroker) -> None:
        super().__init__(monitor)
        self._lines = TEXT.splitlines()


class Top(App[str]):
    """Polls a broker, or those of several logs, every ``interval`` seconds.

    Requests only ``status`` and the data of the current view. Returns an error message, or None.
    """

    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("p", "pause", "pause"),
        Binding("question_mark,f1", "help", "help", key_display="?"),
        Binding("q", "quit", "quit"),
        Binding("ctrl+c", "quit", show=False, priority=True),
    ]

    def __init__(self, link: ReconnectingClient, interval: float, sort: str) -> None:
        super().__init__(ansi_color=True)
        self.theme = "ansi-dark"
        self.animation_level = "none"
        self.monitor = WatchedBroker(link, interval)
        self._first_sort = sort

    def get_default_screen(self) -> Screen[Any]:
        """Start with the overview."""
        return Overview(self.monitor, self._first_sort)

    def on_mount(self) -> None:
        """Start polling."""
        self.run_worker(self._poll(), name="poll")

    def action_pause(self) -> None:
        """Pause or resume the display."""
        self.monitor.paused = not self.monitor.paused
        self._show()

    def action_help(self) -> None:
        """Show the keys."""
        if not isinstance(self.screen, Help):
            self.push_screen(Help(self.monitor))

    async def _poll(self) -> None:
        """Poll at every interval and on request of a view, until the application ends."""
        request = self.monitor.wanted
        while not self._exit:
            due = time.monotonic() + self.monitor.interval
            if not self.monitor.paused:
                await self._ask(status=True)
            while (remaining_seconds := due - time.monotonic()) > 0:
                try:
                    async with asyncio.timeout(remaining_seconds):
                        await request.wait()
                except TimeoutError:
                    break
                await self._ask(status=False)

    async def _ask(self, *, status: bool) -> None:
        monitor = self.monitor
        monitor.wanted.clear()
        try:
            with understood():
                await self._take(status=status)
        except NotUnderstood as error:
            # Retrying does not help.
            self.exit(str(error))
        except FoldmqError as error:
            monitor.missed(time.time(), str(error), poll=status)
            self._show()

    async def _take(self, *, status: bool) -> None:
        monitor, view = self.monitor, self.screen
        if status:
            topics = isinstance(view, View) and view.topics
            monitor.took(await monitor.queries.statuses(topics=topics))
        if isinstance(view, View) and view.ready and monitor.frame is not None:
            try:
                await view.load()
            except NoLiveBroker:
                # The next poll finds out, and names the log.
                if not monitor.queries.several:
                    raise
        self._show()

    def _show(self) -> None:
        if isinstance(self.screen, View) and self.screen.ready:
            self.screen.show()
