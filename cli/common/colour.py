"""Colours of output on a terminal; none elsewhere, and none if NO_COLOR is set (no-color.org)."""

import os
from typing import Literal, TextIO, TypeAlias

Style: TypeAlias = Literal["bold", "dim", "red", "green", "yellow", "cyan"]

_CODES: dict[Style, str] = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
}


def has_colours(stream: TextIO) -> bool:
    """Return whether text for a stream may have colours."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return stream.isatty()


def painted(text: str, style: Style | None, stream: TextIO) -> str:
    """Return a text in a style, if the stream shows colours."""
    if style is None or not text or not has_colours(stream):
        return text
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m"
