"""The view that explains keys and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.top.views.detail_views import TextPage

if TYPE_CHECKING:
    from cli.top.data import WatchedBroker

TEXT = """\
Keys

  arrows, j k     move, scroll; Page Up, Page Down, Home and End too
  Tab             the other table
  Enter           page of an actor or topic; from there, of the session
  t               on a page: live trace of what it gets and sends
  /               only names with these letters, or like a pattern: pump-*
  s               sort by the next column
  p               pause, and go on
  Esc             back; on the first view: no filter
  q               quit

Figures

  in, out         messages a second, by QoS; bytes of the network
  gate            how long records take until they are on disk: nothing that
                  was published at QoS 1 or 2 is answered before; records a
                  second, events in each
  loop            how late the event loop comes to its timers; turns a second
  broker          processor (100% is one core), memory, actors, messages that
                  they handle, the most that any mailbox held
  clients         connections, new ones, those that are not read at present,
                  filters subscribed to
  sessions        all, with a connection, passive (away, without an actor);
                  retained messages
  waiting         sent and not acknowledged; queued; dropped
  log             bytes not on disk yet, bytes to clients held until they
                  are, size of the stream, free space
  BUSY            share of a core that an actor took lately
  BOX, HIGH       messages in its mailbox, and the most that ever were

Curves are of the first figure of their line; a dot is a poll without an
answer. What needs attention is yellow or red. The mouse is left to the
terminal, to copy names with.
"""


class Help(TextPage):
    """What the keys do, and what the figures say."""

    keys = (("Esc", "back"), ("↑↓", "scroll"), ("q", "quit"))

    def __init__(self, monitor: WatchedBroker) -> None:
        super().__init__(monitor)
        self._said = TEXT.splitlines()
