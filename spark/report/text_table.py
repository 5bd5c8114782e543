"""Tables for a terminal: columns of text on the left, columns of numbers on the right."""

import unicodedata
from collections.abc import Iterator, Sequence
from typing import TypeAlias

Cell: TypeAlias = str | int | float | None


def table_lines(head: Sequence[str], rows: Sequence[Sequence[Cell]]) -> Iterator[str]:
    """Yield the lines of a table; text in it must be escaped already.

    Numbers are right-aligned, and so is text below a title that begins with ``>``.
    """
    right = [
        title.startswith(">") or any(isinstance(row[at], int | float) for row in rows)
        for at, title in enumerate(head)
    ]
    titles = [title.removeprefix(">") for title in head]
    shown = [titles, *([_text(cell) for cell in row] for row in rows)]
    widths = [max(_width(row[at]) for row in shown) for at in range(len(head))]
    for row in shown:
        cells = zip(row, widths, right, strict=True)
        yield "  ".join(_padded(cell, width, right=end) for cell, width, end in cells).rstrip()


def _text(cell: Cell) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else cell


def _padded(cell: str, width: int, *, right: bool) -> str:
    room = " " * (width - _width(cell))
    return room + cell if right else cell + room


def _width(text: str) -> int:
    """Return the width of a text in terminal cells."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(letter) else 1 + (unicodedata.east_asian_width(letter) in "WF")
        for letter in text
    )
