"""The base of all views: the top line, the problems, the keys, and the widgets."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import ClassVar

from rich.cells import cell_len, chop_cells
from rich.console import RenderableType
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Static

from cli.common import text
from cli.top import number_format
from cli.top.columns import GAP, TopColumn, cells_of, fitting, titles
from cli.top.figures import BAD, LABEL, TITLE, WARN, header, health, top_problems
from cli.top.watched_broker import Row, WatchedBroker

_MAX_PROBLEMS = 3
"""Maximum number of lines of problems."""
_SENTENCE = 1000
_STEP = 4
_NARROWEST = 20
_INDENT = 4
_MAX_INDENT = 8


class Scroller(VerticalScroll, can_focus=True):
    """Text that scrolls."""

    DEFAULT_CSS = """
    Scroller { overflow-x: hidden; scrollbar-size-vertical: 1; scrollbar-gutter: stable; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "scroll_up", "scroll", key_display="↑↓"),
        Binding("j", "scroll_down", show=False),
    ]


class RowTable(DataTable[Text], inherit_bindings=False):
    """A table with a cursor row; the columns depend on the width.

    Once moved from the first row, the cursor stays with its row when rows change places.
    """

    DEFAULT_CSS = """
    RowTable {
        height: 1fr; max-height: 100%; overflow-x: hidden; scrollbar-size: 0 0;
        background: ansi_default;
        & > .datatable--header, &:ansi > .datatable--header, &:focus > .datatable--header {
            background: ansi_default; background-tint: initial;
        }
        &:focus { background-tint: initial; }
        & > .datatable--cursor, &:focus > .datatable--cursor {
            background: ansi_default; color: ansi_default; text-style: reverse;
        }
    }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "cursor_up", "move", key_display="↑↓"),
        Binding("down,j", "cursor_down", show=False),
        Binding("pageup", "page_up", show=False),
        Binding("pagedown", "page_down", show=False),
        Binding("home", "scroll_top", show=False),
        Binding("end", "scroll_bottom", show=False),
        Binding("enter", "select_cursor", "open", key_display="Enter"),
    ]

    def __init__(self, columns: Sequence[TopColumn], key: Callable[[Row], str], *, id: str) -> None:  # noqa: A002
        super().__init__(id=id, cursor_type="row", cell_padding=0, show_cursor=False)
        self.choice = columns
        """The columns, of which those are shown that fit."""
        self.items: list[Row] = []
        """The rows."""
        self.sorted_by: str | None = None
        """Sort key of the rows."""
        self.filter = ""
        """Filter of the rows, shown beside the first title."""
        self.hint = ""
        """Text shown without rows."""
        self.opens = True
        """Whether Enter opens the marked row."""
        self._key = key
        self._kept: str | None = None
        self._cursor_set = 0
        """Where the cursor was placed; elsewhere it was moved by the user."""
        self._head: list[tuple[Text, int]] = []

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether a key has its action."""
        del parameters
        return self.opens or action != "select_cursor"

    @property
    def marked(self) -> Row | None:
        """The row that the cursor is on."""
        return self.items[self.cursor_row] if self.items else None

    def forget(self) -> None:
        """Move the cursor to the first row."""
        self._kept, self._cursor_set = None, 0
        self.move_cursor(row=0)

    def fill(self, items: list[Row]) -> None:
        """Show these rows."""
        marked = self.marked
        if self.cursor_row != self._cursor_set:
            self._kept = self._key(marked) if marked and self.cursor_row else None
        cursor = self.cursor_row
        if self._kept is not None:
            places = (place for place, row in enumerate(items) if self._key(row) == self._kept)
            cursor = next(places, cursor)
        self.items = items
        self.draw()
        self._cursor_set = max(0, min(cursor, len(items) - 1))
        self.move_cursor(row=self._cursor_set)

    def draw(self) -> None:
        """Draw rows and titles for the current width."""
        sized = fitting(self.choice, self.size.width)
        heads = titles(sized, self.sorted_by, self.filter)
        lines = [cells_of(row, sized) for row in self.items]
        widths = [cells + GAP for _, cells in sized]
        if not self.items:
            # The hint may be wider than a column.
            heads, lines = [Text(" " * GAP).join(heads)], [[Text(self.hint, LABEL)]]
            widths = [sum(widths)]
        sized_heads = list(zip(heads, widths, strict=True))
        if sized_heads != self._head:
            self._head = sized_heads
            offset, cursor = self.scroll_offset.y, self.cursor_row
            self.clear(columns=True)
            for number, (title, cells) in enumerate(sized_heads):
                self.add_column(title, width=cells, key=str(number))
            for line in lines:
                self.add_row(*line, key=str(self.row_count))
            self.move_cursor(row=cursor, scroll=False)
            self.call_after_refresh(self.scroll_to, y=offset, animate=False)
            return
        while self.row_count > len(lines):
            self.remove_row(str(self.row_count - 1))
        for place, line in enumerate(lines):
            if place == self.row_count:
                self.add_row(*line, key=str(place))
            elif self.get_row_at(place) != line:
                for number, cell in enumerate(line):
                    self.update_cell(str(place), str(number), cell)

    def on_resize(self) -> None:
        """Select the columns that fit."""
        self.draw()

    def on_focus(self) -> None:
        """Show the cursor."""
        self.show_cursor = True

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.show_cursor = False


class View(Screen[None]):
    """A full-screen view of a broker."""

    DEFAULT_CSS = """
    View { layout: vertical; }
    View #header { height: 1; }
    View Footer, View FooterKey { background: ansi_default; color: ansi_default; }
    View FooterKey {
        .footer-key--key { background: ansi_default; color: ansi_default; text-style: reverse; }
        .footer-key--description {
            background: ansi_default; color: ansi_default; text-style: dim;
        }
    }
    """
    topics: ClassVar[bool] = False
    """Whether to request the busiest topics."""

    def __init__(self, monitor: WatchedBroker) -> None:
        super().__init__()
        self.monitor = monitor
        self.ready = False
        """Whether the widgets exist."""
        self._header, self._banner = Static(id="header"), Static(id="banner")

    def compose(self) -> ComposeResult:
        """Place the body between the common lines; the last one shows the keys."""
        yield self._header
        yield self._banner
        yield from self.body()
        yield Footer(show_command_palette=False, compact=True)

    def body(self) -> ComposeResult:
        """Yield the widgets of this view."""
        yield from ()

    async def load(self) -> None:
        """Request the data of this view; raises NoLiveBroker."""

    def show(self) -> None:
        """Show the current data."""
        width = self.size.width
        self._header.update(_header(self.monitor, width))
        problems = _problems(self.monitor, width)
        self._banner.display = bool(problems)
        alarm = "bold bright_white on red"
        self._banner.update(
            Text("\n").join(_cut(Text(line, alarm), width, pad=True) for line in problems)
        )

    def on_resize(self) -> None:
        """Redraw for the new width."""
        if self.ready:
            self.show()

    def on_mount(self) -> None:
        """Mark the widgets as existing; text that they got before is shown now."""
        self.ready = True
        self.call_after_refresh(self.show)

    def on_screen_resume(self) -> None:
        """Request the data of this view when it is shown again."""
        self.monitor.wanted.set()


class Page(View):
    """A view opened from another one; Escape returns."""

    traced: Mapping[str, str] | None = None
    """What a live trace is of; None: there is none."""
    log_name = ""
    """The log with what the view is about, if there are several."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "back", "back", key_display="Esc"),
        Binding("t", "trace", "live trace"),
    ]

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Return whether a key has its action."""
        del parameters
        return self.traced is not None or action != "trace"

    def action_back(self) -> None:
        """Close this view."""
        self.app.pop_screen()

    def action_trace(self) -> None:
        """Open a live trace of what this view is about."""
        from cli.top.trace_view import TracePage

        if self.traced is not None:
            self.app.push_screen(TracePage(self.monitor, self.traced, self.log_name))


def as_text(lines: Iterable[str], width: int) -> Text:
    """Wrap long printable lines; the first is the heading."""
    return Text("\n").join(
        Text(line, "" if number else TITLE)
        for number, long in enumerate(lines)
        for line in wrapped(long, width)
    )


def wrapped(line: str, width: int) -> list[str]:
    """Wrap a text to lines of at most ``width`` cells, with all but the first indented.

    Below 20 columns, lines are cut.
    """
    width = max(width, _NARROWEST)
    indent = " " * min(len(line) - len(line.lstrip()) + _INDENT, _MAX_INDENT)
    lines: list[str] = []
    while len(line) > width or cell_len(line) > width:
        head = chop_cells(line[:width], width)[0]
        # Between words, if there is a space near the end.
        gap = head.rfind(" ", len(head) * 2 // 3)
        head = head[:gap] if gap > 0 else head
        lines.append(head)
        line = indent + line[len(head) :].lstrip()
    return [*lines, line]


def _cut(line: Text, width: int, *, pad: bool = False) -> Text:
    line.truncate(width, overflow="ellipsis", pad=pad)
    return line


def _header(monitor: WatchedBroker, width: int) -> RenderableType:
    frame = monitor.frame
    if frame is None:
        where = text.escaped(monitor.link.where)
        return Text.assemble(("foldmq top", TITLE), (f"  asking {where}", LABEL))
    state = health(frame.status)
    if monitor.away_since is not None:
        state = Text("NO ANSWER", BAD)
    elif monitor.paused:
        state = Text("PAUSED", WARN)
    moment = text.clock(frame.status["time_ms"])[11:19]
    return header(
        frame, monitor.link.where, width, state, f"{moment}  every {monitor.interval:g} s"
    )


def _problems(monitor: WatchedBroker, width: int) -> list[str]:
    """Return the problems on a few lines; of an outage, keep the end with the remedy."""
    if monitor.away_since is None:
        problems = [] if monitor.frame is None else top_problems(monitor.frame.status)
        return [f" {reason}" for reason in problems[:_MAX_PROBLEMS]]
    since = text.clock(round(monitor.away_since * 1000))[11:19]
    passed = number_format.age_text(round((time.time() - monitor.away_since) * 1000))
    began, why = f" no answer since {since} ({passed}): ", text.escaped(monitor.why, _SENTENCE)
    lines = wrapped(began + why, width - 1)
    room = min(len(why), _MAX_PROBLEMS * width)
    while len(lines) > _MAX_PROBLEMS and room > _STEP:
        room -= _STEP
        lines = wrapped(f"{began}...{why[-room:]}", width - 1)
    return lines[:_MAX_PROBLEMS]
