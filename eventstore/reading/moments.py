"""Moments as clients and programs write them: ages, times, positions and the words for the ends.

====================================  =========================================================
``all`` ``new`` ``last``              the beginning of the log, its end, the last messages
``30s`` ``10m`` ``2h`` ``7d``         so long ago; ``0s`` is now
``2026-11-29T09:30:00.250Z``          a time, in UTC unless it has a zone
``@1764408600`` ``@1764408600.25``    Unix time in seconds
``12`` ``12.3``                       after record 12, just after entry 3 of it
``p0:12.3,p1:7.0``                    positions in several logs, by their short names
====================================  =========================================================
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from datetime import UTC
from typing import TYPE_CHECKING, Final

from eventstore.reading.position_text import parse_point
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from datetime import tzinfo

    from eventstore.format.positions import Position

ALL, NEW, LAST = "all", "new", "last"
_WORDS: Final = frozenset({ALL, NEW, LAST})
_AGE: Final = re.compile(r"([0-9]{1,9})([smhd])")
_UNITS_MS: Final = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_UNIX: Final = re.compile(r"@([0-9]{1,11})(?:\.([0-9]{1,9}))?")
_OF_LOG: Final = re.compile(r"([A-Za-z0-9_-]{1,64}):([0-9]{1,13}(?:\.[0-9]{1,7})?)")
_MAX_LOGS: Final = 32
_SHOWN: Final = 40


class BadMoment(FoldmqError, ValueError):  # noqa: N818 - named for the condition
    """A text is not a moment; the message says what is expected."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A moment; one of its fields is set."""

    word: str = ""
    """``all``, ``new`` or ``last``."""
    time_ms: int | None = None
    """Unix time in milliseconds, not negative."""
    positions: dict[str, Position] = field(default_factory=dict)
    """Positions by the short name of the log; "" if none is named."""


def parse_moment(
    text: str, now_ms: int, zone: tzinfo = UTC, *, words: frozenset[str] = _WORDS
) -> Moment:
    """Return the moment that a text names; raises BadMoment.

    ``zone`` is that of a time without one. ``words`` are those that are allowed here.
    """
    if text in words:
        return Moment(word=text)
    if age := _AGE.fullmatch(text):
        return Moment(time_ms=max(0, now_ms - int(age[1]) * _UNITS_MS[age[2]]))
    if unix := _UNIX.fullmatch(text):
        return Moment(time_ms=int(unix[1]) * 1000 + int((unix[2] or "0").ljust(3, "0")[:3]))
    point = parse_point(text, zone) if text == text.strip() else None
    if point is not None and point.position is not None:
        return Moment(positions={"": point.position})
    if point is not None and point.time_ms is not None:
        return Moment(time_ms=max(0, point.time_ms))
    return Moment(positions=_positions(text, words))


def _positions(text: str, words: frozenset[str]) -> dict[str, Position]:
    positions: dict[str, Position] = {}
    for part in text.split(",", _MAX_LOGS):
        named = _OF_LOG.fullmatch(part)
        point = parse_point(named[2], UTC) if named is not None else None
        if named is None or point is None or point.position is None:
            raise _not_a_moment(text, words)
        if positions.setdefault(named[1], point.position) != point.position:
            raise BadMoment(f"two positions in the log {named[1]}")
    return positions


def _not_a_moment(text: str, words: frozenset[str]) -> BadMoment:
    shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
    expected = ", ".join([*sorted(words), "a position such as 12.3", "an age such as 10m"])
    return BadMoment(
        f"not a moment: {shown}; expected {expected} or a time such as 2026-11-20T09:30Z"
    )


def ends_before(start: Moment, until: Moment) -> bool:
    """Return whether an end is certainly before a beginning: both are times, or of the same log."""
    if start.time_ms is not None and until.time_ms is not None:
        return until.time_ms < start.time_ms
    return any(until.positions.get(log, at) < at for log, at in start.positions.items())
