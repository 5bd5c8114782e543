"""Moments in a log as typed by operators: a position (``12``, ``12.3``) or a time."""

import contextlib
import re
import time
from dataclasses import replace
from datetime import UTC, datetime

from cli.common import escaped, seconds
from eventstore.errors import UsageError
from eventstore.format import index_of, sequence_of
from eventstore.reading import LogPoint, LogSource, PointSpec, last_until, time_of
from eventstore.reading import parse_point as parse

_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]+)?)?")
_EXPECTED = (
    "expected a position such as 12 or 12.3, a time such as '2026-11-20 09:30' or '09:30', "
    "'10m ago' or 'now'"
)


def parse_point(text: str) -> PointSpec:
    """Parse a moment; raises UsageError with the expected form.

    The number of a record denotes the whole record. A time without a zone is local.
    """
    stripped = text.strip()
    now_ms = time.time() * 1000
    if stripped == "now":
        return PointSpec(stripped, time_ms=round(now_ms))
    given = stripped
    if given.endswith(" ago"):
        with contextlib.suppress(ValueError):
            span = seconds(given.removesuffix(" ago"))
            if isinstance(span, float):
                return PointSpec(stripped, time_ms=round(now_ms - span * 1000))
    elif _TIME_OF_DAY.fullmatch(given):
        given = f"{datetime.now(UTC).astimezone():%Y-%m-%d} {given.rjust(5, '0')}"
    moment = parse(given, zone=None)
    if moment is None:
        raise UsageError(f'not a point in time: "{escaped(text)}"; {_EXPECTED}')
    return replace(moment, text=stripped)


async def point_at(source: LogSource, moment: PointSpec | None) -> LogPoint:
    """Return the position up to which the log describes a moment; None: its end.

    A time includes all records up to it. Raises UsageError for a position beyond the end.
    """
    if moment is None:
        return LogPoint(source.last)
    if moment.position is not None:
        _check_within(source, moment)
        return LogPoint(sequence_of(moment.position), index_of(moment.position))
    return LogPoint(await last_until(source, moment.time_ms or 0))


async def start_at(source: LogSource, moment: PointSpec | None) -> LogPoint:
    """Return the position after which the log describes a moment; None: its beginning."""
    if moment is None:
        return LogPoint(source.begin, 0)
    if moment.position is not None:
        _check_within(source, moment)
        sequence = sequence_of(moment.position)
        if sequence < source.first or "." not in moment.text:
            return LogPoint(max(source.first, sequence), 0)
        return LogPoint(sequence, index_of(moment.position))
    return LogPoint(await last_until(source, (moment.time_ms or 0) - 1) + 1, 0)


async def cut_off(source: LogSource, moment: PointSpec | None) -> bool:
    """Return whether a moment is before the beginning of a cut log."""
    if moment is None or source.first <= 1:
        return False
    if moment.position is not None:
        return sequence_of(moment.position) < source.first
    return (moment.time_ms or 0) < await time_of(source, source.first)


def _check_within(source: LogSource, moment: PointSpec) -> None:
    if moment.position is not None and sequence_of(moment.position) > source.last:
        raise UsageError(
            f"position {moment.text} is beyond the end of the log: the last record is {source.last}"
        )
