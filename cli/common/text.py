"""Text of command output: what displays and positions need, from ``eventstore``."""

import json

from eventstore.display import (
    NAME_LIMIT,
    PAYLOAD_LIMIT,
    clock,
    count_of,
    duration,
    escaped,
    iso,
    json_line,
    name,
    payload_field,
    payload_text,
    size,
)
from eventstore.reading.position_text import packet_ids_text, positions_text, several, stamp

__all__ = [
    "NAME_LIMIT",
    "PAYLOAD_LIMIT",
    "clock",
    "count_of",
    "duration",
    "escaped",
    "iso",
    "json_line",
    "name",
    "packet_ids_text",
    "payload_field",
    "payload_text",
    "positions_text",
    "printable",
    "several",
    "size",
    "stamp",
    "toml_value",
]


def printable(text: str) -> str:
    """Return ``text`` with unprintable characters as JSON escapes."""
    return text if text.isprintable() else json.dumps(text)[1:-1].replace("\x7f", "\\u007f")


def toml_value(value: object) -> str:
    """Return a truth value, number, text or list of texts as TOML."""
    # As in JSON, but TOML has no surrogates, and U+007F must be escaped.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
