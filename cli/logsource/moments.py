"""Moments in a log as people write them: a position (``12``, ``12.3``) or a time."""

import re
import time
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from cli.common.text import escaped
from cli.common.units import seconds
from cli.logsource.source import Source
from cli.logsource.source_flags import UsageError
from eventstore.format import MAX_INDEX, Position, index_of, parse_position, sequence_of

_POSITION = re.compile(r"[0-9]{1,13}(\.[0-9]{1,7})?")
_TIME_OF_DAY = re.compile(r"([0-9]{1,2}):([0-9]{2})(?::([0-9]{2})(?:\.[0-9]+)?)?")
_EXPECTED = (
    "expected a position such as 12 or 12.3, a time such as '2026-11-20 09:30' or '09:30', "
    "'10m ago' or 'now'"
)


@dataclass(frozen=True, slots=True)
class Moment:
    """A position, or a time; exactly one of both is set."""

    text: str
    position: Position | None = None
    time_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Cut:
    """Up to where a log is read: a record, and the last index in it that counts."""

    sequence: int
    index: int = MAX_INDEX


def parse_moment(text: str) -> Moment:
    """Read a moment; raises UsageError saying what is expected.

    A record's number alone stands for all of the record. A time without a zone is local.
    """
    stripped = text.strip()
    if _POSITION.fullmatch(stripped):
        if "." not in stripped:
            return Moment(stripped, position=parse_position(f"{stripped}.{MAX_INDEX}"))
        try:
            return Moment(stripped, position=parse_position(stripped))
        except ValueError:
            pass
    else:
        found = _time(stripped)
        if found is not None:
            return Moment(stripped, time_ms=found)
    raise UsageError(f'not a moment: "{escaped(text)}"; {_EXPECTED}')


def _time(text: str) -> int | None:
    if text == "now":
        return round(time.time() * 1000)
    try:
        if text.endswith(" ago"):
            span = seconds(text.removesuffix(" ago"))
            return round((time.time() - span) * 1000) if isinstance(span, float) else None
        if _TIME_OF_DAY.fullmatch(text):
            text = f"{datetime.now(UTC).astimezone():%Y-%m-%d} {text.rjust(5, '0')}"
        moment = datetime.fromisoformat(text)
        since = moment.astimezone(UTC) - datetime.fromtimestamp(0, UTC)
        return since // timedelta(milliseconds=1)
    except (ValueError, OverflowError, OSError):
        return None


async def cut_at(source: Source, moment: Moment | None) -> Cut:
    """Return up to where the log tells of what was at a moment; None is its end.

    A time counts the records up to and with it. Raises UsageError for a position beyond the end.
    """
    if moment is None:
        return Cut(source.last)
    if moment.position is not None:
        _check_within(source, moment)
        return Cut(sequence_of(moment.position), index_of(moment.position))
    return Cut(await _last_until(source, moment.time_ms or 0))


async def start_at(source: Source, moment: Moment | None) -> Cut:
    """Return from where the log tells of what was since a moment; None is its beginning."""
    if moment is None:
        return Cut(max(1, source.first), 0)
    if moment.position is not None:
        _check_within(source, moment)
        sequence = sequence_of(moment.position)
        if sequence < source.first or "." not in moment.text:
            return Cut(max(source.first, sequence), 0)
        return Cut(sequence, index_of(moment.position))
    return Cut(await _last_until(source, (moment.time_ms or 0) - 1) + 1, 0)


async def cut_off(source: Source, moment: Moment | None) -> bool:
    """Tell whether a moment lies before the beginning of a log that was cut."""
    if moment is None or source.first <= 1:
        return False
    if moment.position is not None:
        return sequence_of(moment.position) < source.first
    return (moment.time_ms or 0) < await time_of(source, source.first)


def _check_within(source: Source, moment: Moment) -> None:
    if moment.position is not None and sequence_of(moment.position) > source.last:
        raise UsageError(
            f"position {moment.text} is beyond the end of the log, whose last record is "
            f"{source.last}"
        )


async def _last_until(source: Source, time_ms: int) -> int:
    """Return the last record that is not later than a time; the one before the first if none."""
    low, high = max(1, source.first) - 1, source.last
    while low < high:
        middle = (low + high + 1) // 2
        if await time_of(source, middle) <= time_ms:
            low = middle
        else:
            high = middle - 1
    return low


async def time_of(source: Source, sequence: int) -> int:
    """Return the time of a record, Unix time in milliseconds; raises CorruptLog."""
    return (await source.some([sequence]))[0].time_ms
