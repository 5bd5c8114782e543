"""What the tools on the log print: all of ``eventstore.display``, and columns of events."""

from collections.abc import Iterable

from eventstore.display import (
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
from eventstore.format import Position, Run, format_position

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

_SHOWN = 3


def several(items: Iterable[str], total: int) -> str:
    """Give the first few of ``total`` items, and how many more there are."""
    shown = [item for item, _ in zip(items, range(_SHOWN), strict=False)]
    more = total - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def numbers(runs: list[Run]) -> str:
    """Give packet identifiers: ``7`` or ``1-128``."""
    return several(map(_number_run, runs), len(runs))


def _number_run(run: Run) -> str:
    if isinstance(run, int):
        return str(run)
    first, count, step = run
    last = first + (count - 1) * step
    return f"{first}-{last}" + (f" by {step}" if step != 1 else "")


def positions(runs: list[Run]) -> str:
    """Give positions: ``5.0`` or ``5.0-5.127``."""
    return several(map(_position_run, runs), len(runs))


def _position_run(run: Run) -> str:
    if isinstance(run, int):
        return format_position(run)
    first, count, step = run
    return f"{format_position(first)}-{format_position(first + (count - 1) * step)}"


def stamp(at: Position, time_ms: int) -> str:
    """Give the two columns that begin a line about something in the log."""
    return f"{clock(time_ms)} {format_position(at):>8}"
