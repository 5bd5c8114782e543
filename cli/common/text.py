"""What the commands print: all of ``eventstore.shown`` and ``eventstore.format.run_text``."""

from eventstore.format.run_text import numbers, positions, several, stamp
from eventstore.shown import (
    NAME_LIMIT,
    PAYLOAD_LIMIT,
    clock,
    counted,
    duration,
    escaped,
    iso,
    json_line,
    name,
    payload_field,
    payload_text,
    size,
)

__all__ = [
    "NAME_LIMIT",
    "PAYLOAD_LIMIT",
    "clock",
    "counted",
    "duration",
    "escaped",
    "iso",
    "json_line",
    "name",
    "numbers",
    "payload_field",
    "payload_text",
    "positions",
    "several",
    "size",
    "stamp",
]
