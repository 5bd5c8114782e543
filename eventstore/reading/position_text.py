"""Positions as text: parsing (``12``, ``12.3`` or an ISO time) and display."""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import Final

from eventstore.display import clock
from eventstore.format.positions import (
    MAX_INDEX,
    Position,
    Run,
    format_position,
    parse_position,
    position,
)

_POSITION: Final = re.compile(r"[0-9]{1,13}(\.[0-9]{1,7})?")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class PointSpec:
    """A position or a time; exactly one of them is set."""

    text: str
    position: Position | None = None
    time_ms: int | None = None
    """Unix time in milliseconds."""


def parse_point(text: str, zone: tzinfo | None, index: int = MAX_INDEX) -> PointSpec | None:
    """Return the position or time that a text contains; None if it contains neither.

    A record number alone is the position ``index`` in that record: by default the whole record. A
    time without a zone is in ``zone``; None: in the local one.
    """
    text = text.strip()
    try:
        if _POSITION.fullmatch(text):
            if "." not in text:
                return PointSpec(text, position(int(text), index))
            return PointSpec(text, parse_position(text))
        if text.isdigit():
            return None  # Python reads more digits as a time
        time = datetime.fromisoformat(text)
        if time.tzinfo is None and zone is not None:
            time = time.replace(tzinfo=zone)
        return PointSpec(text, time_ms=(time.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, OverflowError, OSError):
        return None


def several(items: Iterable[str], total: int) -> str:
    """Return the first few of ``total`` items, and the number of the others."""
    shown = [item for item, _ in zip(items, range(_SHOWN), strict=False)]
    more = total - len(shown)
    return ", ".join(shown) + (f" and {more:,} more" if more > 0 else "")


def packet_ids_text(runs: list[Run]) -> str:
    """Return packet identifiers: ``7`` or ``1-128``."""
    return several((_run_text(run, str, with_step=True) for run in runs), len(runs))


def positions_text(runs: list[Run]) -> str:
    """Return positions: ``5.0`` or ``5.0-5.127``."""
    return several((_run_text(run, format_position, with_step=False) for run in runs), len(runs))


def _run_text(run: Run, shown: Callable[[int], str], *, with_step: bool) -> str:
    if isinstance(run, int):
        return shown(run)
    first, count, step = run
    by = f" by {step}" if with_step and step != 1 else ""
    return f"{shown(first)}-{shown(first + (count - 1) * step)}{by}"


def stamp(at: Position, time_ms: int) -> str:
    """Return the columns time and position, with which a line about the log begins."""
    return f"{clock(time_ms)} {format_position(at):>8}"
