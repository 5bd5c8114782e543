"""Lines of text with roles: the view gives each role a style, plain text ignores it.

There is no markup, so names chosen by clients cannot contain any. They pass through
:func:`cli.common.text.name`, which escapes everything unprintable.
"""

from __future__ import annotations

from typing import Literal

from rich.cells import cell_len, chop_cells, set_cell_size

Role = Literal[
    "plain", "label", "strong", "good", "warn", "bad", "alarm", "curve", "title", "head", "key"
]
Span = tuple[str, Role]
Line = list[Span]

_MARK = "…"
_NARROWEST = 20
_INDENT = 4
_MAX_INDENT = 8


def plain(line: Line) -> str:
    """Return a line as plain text."""
    return "".join(text for text, _ in line).rstrip()


def width_of(line: Line) -> int:
    """Return the width of a line in terminal cells."""
    return sum(cell_len(text) for text, _ in line)


def fit_text(text: str, width: int, *, right: bool = False) -> str:
    """Pad or cut a text to ``width`` cells; a cut is marked."""
    # A name may have 64 KiB: measure only the part that can be shown.
    text = text[: 2 * width + 2]
    size = cell_len(text)
    if size > width:
        return set_cell_size(text, width - 1) + _MARK if width > 1 else _MARK[:width]
    blank = " " * (width - size)
    return blank + text if right else text + blank


def wrapped(text: str, width: int) -> list[str]:
    """Wrap a text to lines of at most ``width`` cells, with all but the first indented.

    Below 20 columns, lines are cut.
    """
    width = max(width, _NARROWEST)
    indent = " " * min(len(text) - len(text.lstrip()) + _INDENT, _MAX_INDENT)
    lines: list[str] = []
    while len(text) > width or cell_len(text) > width:
        head = chop_cells(text[:width], width)[0]
        # Between words, if there is a space near the end.
        gap = head.rfind(" ", len(head) * 2 // 3)
        head = head[:gap] if gap > 0 else head
        lines.append(head)
        text = indent + text[len(head) :].lstrip()
    return [*lines, text]


def cells(*parts: tuple[int, Line]) -> Line:
    """Join lines side by side, each padded or cut to its width in cells.

    All but the last end with a space, to separate them.
    """
    line: Line = []
    for width, part in parts[:-1]:
        line += _fitted(part, width - 1)
        line.append((" ", "plain"))
    width, part = parts[-1]
    return line + _fitted(part, width)


def _fitted(part: Line, width: int) -> Line:
    fitted: Line = []
    left = max(0, width)
    for text, role in part:
        size = cell_len(text)
        if size > left:
            fitted.append((fit_text(text, left), role))
            left = 0
            break
        fitted.append((text, role))
        left -= size
    fitted.append((" " * left, "plain"))
    return fitted
