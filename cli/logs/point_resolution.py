"""Moments in a log as typed by operators: a position (``12``, ``12.3``) or a time."""

import contextlib
import re
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from datetime import UTC, datetime

from cli.common.units import seconds
from cli.logs.source import write_notice
from eventstore.display import clock, escaped, log_prefix
from eventstore.errors import UsageError, naming_log
from eventstore.format.positions import index_of, sequence_of
from eventstore.reading.log_points import (
    LogPoint,
    all_until,
    clock_spans,
    jump_notes,
    last_between,
    last_until,
    time_of,
)
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec
from eventstore.reading.position_text import parse_point as parse

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
    spelled = stripped
    if spelled.endswith(" ago"):
        with contextlib.suppress(ValueError):
            span = seconds(spelled.removesuffix(" ago"))
            if isinstance(span, float):
                return PointSpec(stripped, time_ms=round(now_ms - span * 1000))
    elif _TIME_OF_DAY.fullmatch(spelled):
        spelled = f"{datetime.now(UTC).astimezone():%Y-%m-%d} {spelled.rjust(5, '0')}"
    moment = parse(spelled, zone=None)
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


async def end_at(source: LogSource, moment: PointSpec | None) -> LogPoint:
    """Return the position of the last record of a selection up to a moment.

    Differs from :func:`point_at` where the clock was set back: all records of that time are meant.
    """
    if moment is None or moment.time_ms is None:
        return await point_at(source, moment)
    return LogPoint(await all_until(source, moment.time_ms))


async def points_at(
    logs: Mapping[str, LogSource],
    moment: PointSpec | None,
    find: Callable[[LogSource, PointSpec | None], Awaitable[LogPoint]] = point_at,
) -> dict[str, LogPoint]:
    """Return the point of a moment in each log, as ``find`` does."""
    points = {}
    for log, source in logs.items():
        with naming_log(log):
            points[log] = await find(source, moment)
    return points


def is_between(time_ms: int, start: PointSpec | None, end: PointSpec | None) -> bool:
    """Return whether a record of this time belongs to a selection, as far as its ends are times."""
    low = start.time_ms if start is not None else None
    high = end.time_ms if end is not None else None
    return (low is None or time_ms >= low) and (high is None or time_ms <= high)


async def write_lost_notes(
    logs: Mapping[str, LogSource], starts: Mapping[str, LogPoint], ends: Mapping[str, LogPoint]
) -> None:
    """Print what cannot be said of parts of logs, because records were lost."""
    # Few logs were salvaged, and some commands do not read the log.
    from projections.past.lost_records import lost_in

    for note in await lost_in(logs, starts, ends):
        write_notice(note)


async def write_clock_notes(logs: Mapping[str, LogSource], *moments: PointSpec | None) -> None:
    """Tell the operator about jumps of the clock in logs that are asked by time."""
    for log, source in logs.items():
        with naming_log(log):
            for note in await clock_notes(source, moments):
                write_notice(log_prefix(log) + note)


async def clock_notes(source: LogSource, moments: Iterable[PointSpec | None]) -> list[str]:
    """Return what must be known about times of a log with jumps of the clock: lines, or none.

    Only questions by time are concerned, not those by position.
    """
    times = [part.time_ms for part in moments if part is not None and part.time_ms is not None]
    spans = await clock_spans(source) if times else ()
    notes = jump_notes((part.first, part.jump_ms) for part in spans if part.jump_ms)
    if not notes:
        return []
    for moment in times:
        ends = [await last_between(source, part.first - 1, part.last, moment) for part in spans]
        places = [
            str(end)
            for end, part in zip(ends, spans, strict=True)
            if part.first <= end and (end < part.last or part.ends_ms == moment)
        ]
        if len(places) > 1:
            notes.append(
                f"{clock(moment)} came more than once: up to records {', '.join(places)}; "
                "the first is meant where one is"
            )
    return notes


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
    before = (moment.time_ms or 0) - 1
    if source.begin <= source.last and await time_of(source, source.begin) > before:
        return LogPoint(source.begin, 0)  # no search, which a damaged record could end
    return LogPoint(await last_until(source, before) + 1, 0)


async def cut_off(source: LogSource, moment: PointSpec | None) -> bool:
    """Return whether a moment is before the beginning of a cut log."""
    if moment is None or source.first <= 1:
        return False
    if moment.position is not None:
        return sequence_of(moment.position) < source.first
    return await all_until(source, moment.time_ms or 0) < source.first


def _check_within(source: LogSource, moment: PointSpec) -> None:
    if moment.position is not None and sequence_of(moment.position) > source.last:
        raise UsageError(
            f"position {moment.text} is beyond the end of the log: the last record is {source.last}"
        )
