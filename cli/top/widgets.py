"""The widgets of the views: lines of text, and tables with a cursor.

Both draw only visible lines, directly from :mod:`cli.top.styled_text`: this is cheap, and
nothing in them is interpreted as markup.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding, BindingType
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from cli.top.columns import Row, TopColumn, cells_of, fitting, head

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from textual import events

    from cli.top.styled_text import Line, Role

STYLES: dict[Role, Style] = {
    "plain": Style(),
    "label": Style(dim=True),
    "strong": Style(bold=True),
    "good": Style(color="green"),
    "warn": Style(color="yellow", bold=True),
    "bad": Style(color="red", bold=True),
    "curve": Style(color="cyan"),
    "title": Style(color="cyan", bold=True),
    "alarm": Style(color="bright_white", bgcolor="red", bold=True),
    "head": Style(bold=True, underline=True),
    "key": Style(reverse=True),
}
_CURSOR = Style(reverse=True)


def strip(line: Line, width: int, over: Style | None = None) -> Strip:
    """Return a line for the terminal, ``width`` cells wide; ``over`` replaces all styles."""
    segments = [Segment(text, over or STYLES[role]) for text, role in line if text]
    return Strip(segments).adjust_cell_length(width, over or Style.null())


class Lines(ScrollView, can_focus=False):
    """Lines that do not scroll."""

    DEFAULT_CSS = """
    Lines { overflow: hidden; height: auto; }
    """

    grows: ClassVar[bool] = True
    """Whether its height is its number of lines."""

    def __init__(self, *, id: str | None = None) -> None:  # noqa: A002 - textual's name
        super().__init__(id=id)
        self._lines: list[Line] = []

    @property
    def lines(self) -> list[Line]:
        """The lines or rows shown."""
        return self._lines

    @lines.setter
    def lines(self, lines: list[Line]) -> None:
        grown = len(lines) != len(self._lines)
        self._lines = lines
        self.virtual_size = Size(self.size.width, len(lines))
        self.refresh(layout=grown and self.grows)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """Return the number of lines."""
        del container, viewport, width
        return len(self._lines)

    def render_line(self, y: int) -> Strip:
        """Draw a line."""
        line = y + self.scroll_offset.y
        found = self._lines[line] if line < len(self._lines) else []
        return strip(found, self.size.width)


class Scroller(Lines, can_focus=True):
    """Lines that scroll."""

    DEFAULT_CSS = """
    Scroller {
        overflow-x: hidden; overflow-y: auto; height: 1fr;
        scrollbar-size-vertical: 1; scrollbar-gutter: stable;
    }
    """
    grows = False
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("k", "scroll_up", show=False),
        Binding("j", "scroll_down", show=False),
    ]

    @property
    def room(self) -> int:
        """Width of a line in cells."""
        return self.scrollable_content_region.width


class RowTable(ScrollView, can_focus=True, inherit_bindings=False):
    """A table with a cursor row; the columns depend on the width.

    Once moved from the first row, the cursor stays with its row when rows change places.
    """

    DEFAULT_CSS = """
    RowTable { overflow-x: hidden; overflow-y: auto; height: 1fr; scrollbar-size: 0 0; }
    """
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("up,k", "move(-1)", show=False),
        Binding("down,j", "move(1)", show=False),
        Binding("pageup", "move_page(-1)", show=False),
        Binding("pagedown", "move_page(1)", show=False),
        Binding("home", "move(-1000000)", show=False),
        Binding("end", "move(1000000)", show=False),
        Binding("enter", "choose", show=False),
    ]

    class Chosen(Message):
        """Enter was pressed on a row."""

        def __init__(self, table: RowTable, row: Row) -> None:
            super().__init__()
            self.table = table
            self.row = row

        @property
        def control(self) -> RowTable:
            """The table."""
            return self.table

    def __init__(self, columns: Sequence[TopColumn], key: Callable[[Row], str], *, id: str) -> None:  # noqa: A002
        super().__init__(id=id)
        self._columns = columns
        self._key = key
        self._rows: list[Row] = []
        self._kept: str | None = None
        self._sized: list[tuple[TopColumn, int]] = []
        self.cursor = 0
        self.sort: str | None = None
        """Sort key of the rows."""
        self.filter = ""
        """Filter of the rows, shown beside the first title."""
        self.hint = ""
        """Text shown without rows."""

    @property
    def columns(self) -> Sequence[TopColumn]:
        """The columns, of which those are shown that fit."""
        return self._columns

    @columns.setter
    def columns(self, columns: Sequence[TopColumn]) -> None:
        if columns is not self._columns:
            self._columns = columns
            self._sized = fitting(columns, self.scrollable_content_region.width)

    @property
    def rows(self) -> list[Row]:
        """The lines or rows shown."""
        return self._rows

    @rows.setter
    def rows(self, rows: list[Row]) -> None:
        self._rows = rows
        if self._kept is not None:
            places = (place for place, row in enumerate(rows) if self._key(row) == self._kept)
            self.cursor = next(places, self.cursor)
        self.cursor = max(0, min(self.cursor, len(rows) - 1))
        self.virtual_size = Size(self.size.width, len(rows) + 1)
        self._show_cursor()
        self.refresh()

    @property
    def marked(self) -> Row | None:
        """The row that the cursor is on."""
        return self._rows[self.cursor] if self._rows else None

    def forget(self) -> None:
        """Move the cursor to the first row."""
        self.cursor, self._kept = 0, None

    def action_move(self, by: int) -> None:
        """Move the cursor by a number of rows."""
        if not self._rows:
            return
        self.cursor = max(0, min(self.cursor + by, len(self._rows) - 1))
        self._kept = self._key(self._rows[self.cursor]) if self.cursor else None
        self._show_cursor()
        self.refresh()

    def action_move_page(self, by: int) -> None:
        """Move the cursor by a number of screens."""
        self.action_move(by * max(1, self.size.height - 2))

    def action_choose(self) -> None:
        """Post that the cursor row was selected."""
        row = self.marked
        if row is not None:
            self.post_message(self.Chosen(self, row))

    def on_resize(self, event: events.Resize) -> None:
        """Select the columns that fit."""
        self._sized = fitting(self._columns, self.scrollable_content_region.width)
        self.virtual_size = Size(event.size.width, len(self._rows) + 1)
        self._show_cursor()
        self.refresh()

    def on_focus(self) -> None:
        """Show the cursor."""
        self.refresh()

    def on_blur(self) -> None:
        """Hide the cursor."""
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """Draw the titles, or the row at this line."""
        width = self.scrollable_content_region.width
        if y == 0:
            return strip(head(self._sized, self.sort, self.filter), width)
        place = y - 1 + self.scroll_offset.y
        if place >= len(self._rows):
            hint: Line = [(self.hint if place == 0 else "", "label")]
            return strip(hint, width)
        here = place == self.cursor and self.has_focus
        line = cells_of(self._rows[place], self._sized)
        return strip(line, width, _CURSOR if here else None)

    def _show_cursor(self) -> None:
        """Scroll to the cursor; the titles take the first line."""
        seen = self.size.height - 1
        if seen <= 0:
            return
        top = self.scroll_offset.y
        wanted = min(max(top, self.cursor - seen + 1), self.cursor)
        if wanted != top:
            self.scroll_to(y=wanted, animate=False)
