"""The view that explains keys and figures."""

from __future__ import annotations

from typing import TYPE_CHECKING

from cli.top.pages import TextPage

if TYPE_CHECKING:
    from cli.top.monitor import Monitor

TEXT = """\
Keys

  arrows, j k          move, scroll; Page Up, Page Down, Home and End too
  Tab, left, right     the other table
  Enter                open the page of an actor or topic, or its session from there
  t                    on a page: live trace of what it gets and sends
  /                    show only some: a part of the name, or a pattern such as pump-*
  s                    sort by the next column
  p                    pause, and go on
  Esc                  back; on the first view: no filter
  q                    quit

Figures

  in, out     messages per second, by QoS, and bytes of the network
  gate        how long records take until they are on disk: nothing that was published at
              QoS 1 or 2 is answered before; records per second, events per record
  loop        how late the broker's event loop comes to its timers
  broker      processor (100% is a core) and memory, actors, messages they handle, and the
              most that any mailbox held since the start
  clients     connections; paused ones are not read at present; filters subscribed to
  sessions    passive ones are away and need no actor; retained messages
  waiting     sent and not acknowledged; queued for clients that are away or slow
  log         bytes not on disk yet, bytes to clients held until they are, size of the
              stream, free space
  BUSY        share of a core that an actor took lately
  BOX, HIGH   messages in its mailbox now, and the most there ever were

What needs attention is yellow or red. The mouse is left to the terminal, to copy names with.
"""


class Help(TextPage):
    """What the keys do, and what the figures say."""

    keys = (("Esc", "back"), ("↑↓", "scroll"), ("q", "quit"))

    def __init__(self, monitor: Monitor) -> None:
        super().__init__(monitor)
        self._said = TEXT.splitlines()
