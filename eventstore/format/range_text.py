"""Positions, packet identifiers and lists as text for displays."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.display import clock
from eventstore.format.positions import Position, Run, format_position

if TYPE_CHECKING:
    from collections.abc import Iterable

_SHOWN = 3


def several(items: Iterable[str], total: int) -> str:
    """Return the first few of ``total`` items, and the number of the others."""
    shown = [item for item, _ in zip(items, range(_SHOWN), strict=False)]
    more = total - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def packet_ids_text(runs: list[Run]) -> str:
    """Return packet identifiers: ``7`` or ``1-128``."""
    return several(map(_number_run, runs), len(runs))


def _number_run(run: Run) -> str:
    if isinstance(run, int):
        return str(run)
    first, count, step = run
    last = first + (count - 1) * step
    return f"{first}-{last}" + (f" by {step}" if step != 1 else "")


def positions_text(runs: list[Run]) -> str:
    """Return positions: ``5.0`` or ``5.0-5.127``."""
    return several(map(_position_run, runs), len(runs))


def _position_run(run: Run) -> str:
    if isinstance(run, int):
        return format_position(run)
    first, count, step = run
    return f"{format_position(first)}-{format_position(first + (count - 1) * step)}"


def stamp(at: Position, time_ms: int) -> str:
    """Return the columns time and position, with which a line about the log begins."""
    return f"{clock(time_ms)} {format_position(at):>8}"
