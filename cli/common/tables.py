"""Tables, cut to the width of a terminal; elsewhere with complete names."""

import shutil
import sys
import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Generic, TextIO, TypeVar

from rich.cells import cell_len, set_cell_size

from cli.common import text
from cli.common.colour import Style, has_colours, painted

T = TypeVar("T")
Cell = str | int | None

_BLOCK = 500
"""Number of rows collected to determine the widths."""
_GAP = "  "
_MIN = 12
"""Minimum width of a name."""
_WRAPPED = 40
"""Width of a wrapped column from which on it leaves room to others."""
_MIN_LINE = 20
"""Minimum width of a line of a wrapped column."""
_PADDED = 40
"""Maximum width that columns are padded to without a terminal."""


@dataclass(frozen=True, slots=True)
class Column(Generic[T]):
    """A column of a table."""

    title: str
    cell: Callable[[T], Cell]
    """Returns the value to show; None is shown as a dash."""
    right: bool = False
    name: bool = False
    """Chosen by clients: escaped, and cut to the available width."""
    wide: bool = False
    """Omitted on a terminal of less than 100 columns."""
    least_width: int = 0
    """Omitted on a terminal of fewer columns."""
    ready: bool = False
    """Already escaped."""
    wrapped: bool = False
    """The last column: on a terminal broken into lines that fit, at blanks."""
    style: Callable[[T], Style | None] | None = None
    """Returns the style of the value on a terminal with colours."""


class Table(Generic[T]):
    """Prints rows in blocks as they arrive; columns widen when a later block needs it."""

    def __init__(self, columns: Sequence[Column[T]], out: TextIO | None = None) -> None:
        self._out = out or sys.stdout
        self.terminal = self._out.isatty()
        self._width = shutil.get_terminal_size().columns if self.terminal else 0
        roomy = not self.terminal or self._width >= 100
        self._columns = [
            column
            for column in columns
            if (roomy or not column.wide)
            and (not self.terminal or self._width >= column.least_width)
        ]
        self._widths = [len(column.title) for column in self._columns]
        self._block: list[list[str]] = []
        self._styles: list[list[Style | None]] = []
        self._painted = has_colours(self._out) and any(
            shown_column.style for shown_column in self._columns
        )
        self.rows = 0

    def add(self, row: T) -> None:
        """Add a row."""
        self._block.append([self._shown(column, row) for column in self._columns])
        if self._painted:
            styles = [
                None if shown_column.style is None else shown_column.style(row)
                for shown_column in self._columns
            ]
            self._styles.append(styles)
        self.rows += 1
        if len(self._block) >= _BLOCK:
            self._flush()

    def close(self) -> None:
        """Print the remaining rows."""
        if self._block:
            self._flush()
        self._out.flush()

    def _shown(self, column: Column[T], row: T) -> str:
        value = column.cell(row)
        if value is None:
            return "-"
        if isinstance(value, int):
            return f"{value:,}" if self.terminal else str(value)
        if column.ready:
            return value
        if not column.name:
            return text.escaped(value)
        if not self.terminal:
            return text.name(value, len(value))
        shown = text.name(value[: self._width], self._width)
        return shown + "…" if len(value) > self._width else shown

    def _flush(self) -> None:
        first = self.rows == len(self._block)
        for number, column in enumerate(self._columns):
            most = max(cell_len(cells[number]) for cells in self._block)
            if column.name and not self.terminal:
                most = min(most, _PADDED)
            self._widths[number] = max(self._widths[number], most)
        widths = self._fitted()
        if first:
            line = self._line([column.title for column in self._columns], widths, ())
            self._out.write(painted(line, "bold", self._out) + "\n")
        for cells, styles in zip_longest(self._block, self._styles, fillvalue=()):
            self._out.write(self._line(cells, widths, styles) + "\n")
        self._block.clear()
        self._styles.clear()

    def _fitted(self) -> list[int]:
        """Return the widths, with names narrowed so that a line fits on the terminal."""
        widths = list(self._widths)
        if not self.terminal:
            return widths
        names = [number for number, column in enumerate(self._columns) if column.name]
        if self._columns[-1].wrapped:
            widths[-1] = min(widths[-1], _WRAPPED)
        over = sum(widths) + len(_GAP) * (len(widths) - 1) - self._width
        while over > 0 and names:
            longest = max(names, key=widths.__getitem__)
            if widths[longest] <= _MIN:
                break
            widths[longest] -= 1
            over -= 1
        return widths

    def _line(
        self, cells: Sequence[str], widths: Sequence[int], styles: Sequence[Style | None]
    ) -> str:
        shown: list[str] = []
        styles = styles or [None] * len(cells)
        for column, cell, width, style in zip(self._columns, cells, widths, styles, strict=True):
            if self.terminal and column.name:
                cell = cut(cell, width)
            if column.wrapped:
                shown.append(self._broken(cell, sum(widths[:-1]) + len(_GAP) * len(shown), style))
                continue
            pad = " " * (width - cell_len(cell))
            cell = painted(cell, style, self._out)
            shown.append(pad + cell if column.right else cell + pad)
        return _GAP.join(shown).rstrip()

    def _broken(self, cell: str, before: int, style: Style | None) -> str:
        """Return a cell in lines that fit behind ``before`` columns of the terminal."""
        room = self._width - before
        parts = [cell]
        if self.terminal and room >= _MIN_LINE:
            parts = textwrap.wrap(cell, room, break_on_hyphens=False) or [""]
        return ("\n" + " " * before).join(painted(part, style, self._out) for part in parts)


def cut(shown: str, width: int) -> str:
    """Cut a single-line text to a width in cells."""
    if cell_len(shown) <= width:
        return shown
    return set_cell_size(shown, max(0, width - 1)).rstrip() + "…"


def duration_text(milliseconds: float) -> str:
    """Return a short duration for a table, with a decimal below 10 milliseconds or seconds."""
    if milliseconds < 1000:
        return f"{milliseconds:.1f} ms" if milliseconds < 10 else f"{milliseconds:.0f} ms"
    return f"{milliseconds / 1000:.1f} s" if milliseconds < 10_000 else whole_span(milliseconds)


def whole_span(milliseconds: float) -> str:
    """Return a duration in its largest unit, at least seconds."""
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000)):
        if milliseconds >= length:
            return f"{milliseconds // length:.0f} {unit}"
    return f"{milliseconds // 1000:.0f} s"


def time_ago(then_ms: int | None, now_ms: int) -> str | None:
    """Return how long ago a moment was, for a table."""
    return None if then_ms is None else f"{whole_span(max(0, now_ms - then_ms))} ago"


def idle(then_ms: int | None, now_ms: int) -> str | None:
    """Return the idle time since a moment, for a table."""
    return None if then_ms is None else whole_span(max(0, now_ms - then_ms))
