"""Moments in a log as text: a position (``12``, ``12.3``) or an ISO time."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

from eventstore.format.positions import MAX_INDEX, Position, parse_position, position

if TYPE_CHECKING:
    from datetime import tzinfo

_POSITION: Final = re.compile(r"[0-9]{1,13}(\.[0-9]{1,7})?")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


@dataclass(frozen=True, slots=True)
class PointSpec:
    """A position or a time; exactly one of them is set."""

    text: str
    position: Position | None = None
    time_ms: int | None = None
    """Unix time in milliseconds."""


def parse_point(text: str, zone: tzinfo | None, index: int = MAX_INDEX) -> PointSpec | None:
    """Return the moment that a text names; None if it names none.

    A record's number alone is the position ``index`` in that record: by default the whole record.
    A time without a zone is in ``zone``; None: in the local one.
    """
    text = text.strip()
    try:
        if _POSITION.fullmatch(text):
            if "." not in text:
                return PointSpec(text, position(int(text), index))
            return PointSpec(text, parse_position(text))
        time = datetime.fromisoformat(text)
        if time.tzinfo is None and zone is not None:
            time = time.replace(tzinfo=zone)
        return PointSpec(text, time_ms=(time.astimezone(UTC) - _EPOCH) // timedelta(milliseconds=1))
    except (ValueError, OverflowError, OSError):
        return None
