"""The view of a live trace of an actor, a client or a topic."""

import asyncio
from collections import deque
from collections.abc import Mapping
from itertools import islice
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import RichLog, Static

from cli.common import text
from cli.logs.broker_client import NoLiveBroker, Refused
from cli.logs.log_brokers import LogBrokers
from cli.logs.trace_client import Portion, open_traces
from cli.logs.trace_text import trace_text
from cli.top.base_view import Page, wrapped
from cli.top.figures import BAD, CURVE, LABEL, TITLE, WARN
from cli.top.watched_broker import WatchedBroker
from protocol.errors import FoldmqError

KEPT = 2000
"""Maximum number of lines kept."""
_RATE = 100
"""Requested lines per second; more cannot be read."""
_DRAW_SECONDS = 0.25
_STYLES = {"event": "green", "sends": CURVE, "packet_out": CURVE, "route": CURVE, "fails": BAD}


class TraceLog(RichLog):
    """The lines of a trace, from which the keyboard can scroll back."""

    DEFAULT_CSS = """
    TraceLog { background: ansi_default; overflow-x: hidden; scrollbar-size-vertical: 1; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "scroll", key_display="↑↓"),
        Binding("j", "scroll_down", show=False),
        Binding("end", "scroll_end", "go on", key_display="End"),
    ]


class TracePage(Page):
    """Follows the end of a trace, except while scrolled back."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("c", "clear", "clear")]
    AUTO_FOCUS = "#trace"

    def __init__(self, monitor: WatchedBroker, of: Mapping[str, str], log: str = "") -> None:
        super().__init__(monitor)
        ((kind, name),) = of.items()
        self._of = dict(of)
        self._log_name = log
        self._shown = f"{kind} {text.name(name)}" if kind != "actor" else text.escaped(name)
        if log:
            self._shown += f", log {text.name(log)}"
        self._who = kind == "topic"
        self._lines: deque[tuple[str, str]] = deque(maxlen=KEPT)
        """Lines with their styles, ..."""
        self._new = 0
        """... of which this many, at the end, are not drawn yet."""
        self._skipped = 0
        """Lines skipped since the last one."""
        self._about, self._trace = Static(id="about"), TraceLog(id="trace", max_lines=KEPT)

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
        self._trace.clear()
        self._new = len(self._lines)

    def action_clear(self) -> None:
        """Clear the lines."""
        self._lines.clear()
        self._trace.clear()
        self._new = self._skipped = 0

    async def _follow(self) -> None:
        """Receive lines; restart the trace when the broker is back."""
        ended = False
        while not ended:
            try:
                brokers = await self.monitor.link.open()
                rate = _RATE if self._log_name else max(1, _RATE // len(brokers.nodes))
                async with open_traces(brokers, self._log_name, rate=rate, **self._of) as trace:
                    async for portion in trace.portions():
                        self._take(portion, brokers)
                        if portion.cause == "broker":
                            raise NoLiveBroker("the broker has ended")
                ended = True
            except Refused as refusal:
                self._add_line(str(refusal), BAD)
                ended = True
            except FoldmqError as error:
                self._add_line(f"... {error}; retrying", WARN)
                await asyncio.sleep(self.monitor.interval)

    def _take(self, portion: Portion, brokers: LogBrokers) -> None:
        if portion.cause == "away":
            self._add_line(f"... {portion.ended}; its lines are missing until it is back", WARN)
            return
        if portion.cause == "back":
            self._add_line(f"... tracing log {portion.log} again", WARN)
        if portion.lost:
            of_log = f" of log {portion.log}" if portion.log else ""
            self._add_line(f"... some lines{of_log} were lost in transit", WARN)
        for line in portion.lines:
            log = line.get("log", "")
            shown = trace_text(line, who=self._who, log=log and brokers.short(log))
            self._add_line(shown, _STYLES.get(str(line.get("kind")), ""))
        self._skipped += portion.skipped
        if portion.ended is not None:
            self._add_line(f"the trace has ended: {text.escaped(portion.ended, 400)}", WARN)

    def _add_line(self, line: str, style: str) -> None:
        if self._skipped:
            skipped, self._skipped = self._skipped, 0
            self._add_line(f"... skipped {text.count_of(skipped, 'line')}", WARN)
        self._lines.append((line, style))
        self._new = min(self._new + 1, KEPT)

    def _draw(self) -> None:
        """Show new lines, unless the operator has scrolled back."""
        at_end = self._trace.is_vertical_scroll_end
        state = "paused" if self.monitor.paused else "following" if at_end else "scrolled back"
        about = Text.assemble(("trace of ", LABEL), (self._shown, TITLE), (f"  {state}", LABEL))
        if self._skipped:
            shown = text.count_of(self._skipped, "line")
            about.append(f", skipped {shown} above the rate limit", WARN)
        self._about.update(about)
        if not at_end or self.monitor.paused:
            return
        width = self._trace.scrollable_content_region.width
        for line, style in islice(self._lines, len(self._lines) - self._new, None):
            self._trace.write(Text("\n".join(wrapped(line, width)), style))
        self._new = 0
