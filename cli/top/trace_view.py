"""The view of a live trace of an actor, a client or a topic."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, ClassVar, NamedTuple

from textual.binding import Binding, BindingType

from cli.common import text
from cli.logs.broker_client import NoLiveBroker, Refused
from cli.logs.trace_client import Portion, open_traces
from cli.logs.trace_text import TraceWords
from cli.top.base_view import Page
from cli.top.styled_text import Line, Role, wrapped
from cli.top.widgets import Lines, Scroller
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from textual.app import ComposeResult

    from cli.logs.log_brokers import LogBrokers
    from cli.top.watched_broker import WatchedBroker

KEPT = 2000
"""Maximum number of lines kept."""
_RATE = 100
"""Requested lines per second; more cannot be read."""
_DRAW_SECONDS = 0.25
_ROLES: dict[str, Role] = {
    "event": "good",
    "sends": "curve",
    "packet_out": "curve",
    "route": "curve",
    "fails": "bad",
}


class _TraceLine(NamedTuple):
    """A line of the trace, wrapped for the terminal."""

    text: str
    role: Role
    lines: list[Line]


class TracePage(Page):
    """Follows the end of a trace, except while scrolled back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("c", "clear", show=False)]
    AUTO_FOCUS = "#trace"
    keys = (
        ("Esc", "back"),
        ("↑↓", "scroll"),
        ("End", "go on"),
        ("c", "clear"),
        ("p", "pause"),
        ("q", "quit"),
    )

    def __init__(self, monitor: WatchedBroker, of: Mapping[str, str], log: str = "") -> None:
        super().__init__(monitor)
        ((kind, name),) = of.items()
        self._of = dict(of)
        self._log_name = log
        self._shown = f"{kind} {text.name(name)}" if kind != "actor" else text.escaped(name)
        if log:
            self._shown += f", log {text.name(log)}"
        self._who = kind == "topic"
        self._words: dict[str, TraceWords] = {}
        """By log: the same position is another message in each."""
        self._got: deque[_TraceLine] = deque(maxlen=KEPT)
        self._skipped = 0
        """Number of lines that the last line stands for."""
        self._new = False
        self._about, self._trace = Lines(id="about"), Scroller(id="trace")

    def body(self) -> ComposeResult:
        """Yield a heading and the lines."""
        yield self._about
        yield self._trace

    def on_mount(self) -> None:
        """Begin."""
        super().on_mount()
        self.run_worker(self._follow(), name="trace")
        # Portions are drawn together, because the broker may share this processor.
        self.set_interval(_DRAW_SECONDS, self._draw)

    def on_resize(self) -> None:
        """Show everything for the new width."""
        super().on_resize()
        # After the lines have their new size.
        self.call_after_refresh(self._rewrap)

    def action_clear(self) -> None:
        """Clear the lines."""
        self._got.clear()
        self._skipped = 0
        self._new = True

    async def _follow(self) -> None:
        """Receive lines; restart the trace when the broker is back."""
        ended = False
        while not ended:
            try:
                await self._take_all()
                ended = True
            except Refused as refusal:
                self._add_line(str(refusal), "bad")
                ended = True
            except FoldmqError as error:
                self._add_line(f"... {error}; retrying", "warn")
                await asyncio.sleep(self.monitor.interval)

    async def _take_all(self) -> None:
        brokers = await self.monitor.link.open()
        rate = _RATE if self._log_name else max(1, _RATE // len(brokers.nodes))
        async with open_traces(brokers, self._log_name, rate=rate, **self._of) as trace:
            async for portion in trace.portions():
                self._take(portion, brokers)
                if portion.cause == "broker":
                    raise NoLiveBroker("the broker has ended")

    def _take(self, portion: Portion, brokers: LogBrokers) -> None:
        if portion.cause == "away":
            self._add_line(f"... {portion.ended}; its lines are missing until it is back", "warn")
            return
        if portion.cause == "back":
            self._add_line(f"... tracing log {portion.log} again", "warn")
        if portion.lost:
            of_log = f" of log {portion.log}" if portion.log else ""
            self._add_line(f"... some lines{of_log} were lost in transit", "warn")
        for line in portion.lines:
            log = line.get("log", "")
            if log not in self._words:
                self._words[log] = TraceWords(who=self._who, log=log and brokers.short(log))
            self._add_line(self._words[log].text(line), _ROLES.get(str(line.get("kind")), "plain"))
        if portion.skipped:
            self._skip(portion.skipped)
        if portion.ended is not None:
            self._add_line(f"the trace has ended: {text.escaped(portion.ended, 400)}", "warn")

    def _skip(self, count: int) -> None:
        """Show that lines are missing, once per gap."""
        if self._skipped:
            self._got.pop()
        total = self._skipped + count
        shown = text.count_of(total, "line")
        self._add_line(f"... skipped {shown} above the rate limit", "warn")
        self._skipped = total

    def _add_line(self, said: str, role: Role) -> None:
        self._got.append(_TraceLine(said, role, _broken(said, role, self._trace.room)))
        self._skipped = 0
        self._new = True

    def _draw(self) -> None:
        """Show new lines, unless the operator has scrolled back."""
        page = self._trace
        at_end = page.scroll_offset.y >= page.max_scroll_y
        state = "paused" if self.monitor.paused else "following" if at_end else "scrolled back"
        about: Line = [("trace of ", "label"), (self._shown, "title"), (f"  {state}", "label")]
        if self._about.lines != [about]:
            self._about.lines = [about]
        if not self._new or not at_end or self.monitor.paused:
            return
        self._new = False
        page.lines = [line for said in self._got for line in said.lines]
        page.scroll_end(animate=False)

    def _rewrap(self) -> None:
        """Wrap all lines for the current width."""
        width = self._trace.room
        said = [
            _TraceLine(one.text, one.role, _broken(one.text, one.role, width)) for one in self._got
        ]
        self._got = deque(said, KEPT)
        self._new = True


def _broken(said: str, role: Role, width: int) -> list[Line]:
    return [[(line, role)] for line in wrapped(said, width)]
