"""The view that explains keys and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.top.detail_views import TextPage

if TYPE_CHECKING:
    from cli.top.watched_broker import WatchedBroker

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
  sessions        all, connected, passive (offline, without an actor);
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

    keys = (("Esc", "back"), ("↑↓", "scroll"), ("q", "quit"))

    def __init__(self, monitor: WatchedBroker) -> None:
        super().__init__(monitor)
        self._lines = TEXT.splitlines()
