"""The base of all views: the top line, the problems, and the keys."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, ClassVar

from textual.binding import Binding, BindingType
from textual.screen import Screen

from cli.common import text
from cli.top import number_format
from cli.top.styled_text import Line, cells, wrapped
from cli.top.summary_text import header, health, top_problems
from cli.top.widgets import Lines

if TYPE_CHECKING:
    from collections.abc import Iterable

    from textual.app import ComposeResult

    from cli.top.watched_broker import WatchedBroker

_MAX_PROBLEMS = 3
"""Maximum number of lines of problems."""
_SENTENCE = 1000
_STEP = 4


class View(Screen[None]):
    """A full-screen view of a broker."""

    DEFAULT_CSS = """
    View { layout: vertical; }
    View #header, View #keys { height: 1; }
    """
    topics: ClassVar[bool] = False
    """Whether to request the busiest topics."""
    keys: tuple[tuple[str, str], ...] = ()
    """The keys shown on the last line, with their actions."""

    def __init__(self, monitor: WatchedBroker) -> None:
        super().__init__()
        self.monitor = monitor
        self.ready = False
        """Whether the widgets exist."""
        self._header, self._banner = Lines(id="header"), Lines(id="banner")
        self._keys = Lines(id="keys")

    def compose(self) -> ComposeResult:
        """Place the body between the common lines."""
        yield self._header
        yield self._banner
        yield from self.body()
        yield self._keys

    def body(self) -> ComposeResult:
        """Yield the widgets of this view."""
        yield from ()

    async def load(self) -> None:
        """Request the data of this view; raises NoLiveBroker."""

    def show(self) -> None:
        """Show the current data."""
        width = self.size.width
        self._header.lines = [_header(self.monitor, width)]
        self._banner.lines = _banner(self.monitor, width)
        self._keys.lines = [_keys(self.keys, width)]

    def on_resize(self) -> None:
        """Redraw for the new width."""
        if self.ready:
            self.show()

    def on_mount(self) -> None:
        """Mark the widgets as existing."""
        self.ready = True

    def on_screen_resume(self) -> None:
        """Request the data of this view when it is shown again."""
        self.monitor.wanted.set()


class Page(View):
    """A view opened from another one; Escape returns."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape,backspace", "back", show=False)]

    def action_back(self) -> None:
        """Close this view."""
        self.app.pop_screen()


def as_lines(said: Iterable[str], width: int) -> list[Line]:
    """Wrap long printable lines; the first is the heading."""
    return [
        [(line, "plain" if number else "title")]
        for number, long in enumerate(said)
        for line in wrapped(long, width)
    ]


def _header(monitor: WatchedBroker, width: int) -> Line:
    frame = monitor.frame
    if frame is None:
        return [("foldmq top", "title"), (f"  asking {text.escaped(monitor.link.where)}", "label")]
    state = health(frame.status)
    if monitor.away_since is not None:
        state = [("NO ANSWER", "bad")]
    elif monitor.paused:
        state = [("PAUSED", "warn")]
    moment = text.clock(frame.status["time_ms"])[11:19]
    return header(
        frame, monitor.link.where, width, state, f"{moment}  every {monitor.interval:g} s"
    )


def _banner(monitor: WatchedBroker, width: int) -> list[Line]:
    if monitor.away_since is not None:
        since = text.clock(round(monitor.away_since * 1000))[11:19]
        passed = number_format.age_text(round((time.time() - monitor.away_since) * 1000))
        return _alarm(
            f" no answer since {since} ({passed}): ", text.escaped(monitor.why, _SENTENCE), width
        )
    if monitor.frame is None:
        return []
    found = top_problems(monitor.frame.status)
    return [cells((width, [(f" {reason}", "alarm")])) for reason in found[:_MAX_PROBLEMS]]


def _alarm(said: str, why: str, width: int) -> list[Line]:
    """Return the problem on a few lines, keeping its end with the remedy."""
    lines = wrapped(said + why, width - 1)
    room = min(len(why), _MAX_PROBLEMS * width)
    while len(lines) > _MAX_PROBLEMS and room > _STEP:
        room -= _STEP
        lines = wrapped(f"{said}...{why[-room:]}", width - 1)
    lines = lines[:_MAX_PROBLEMS]
    return [cells((width, [(line, "alarm")])) for line in lines]


def _keys(keys: tuple[tuple[str, str], ...], width: int) -> Line:
    line: Line = []
    for key, what in keys:
        line += [(f" {key} ", "key"), (f"{what} ", "label")]
    return cells((width, line))
