"""Points in a log, and the records at a time.

Within a log the times of records run backwards only where the clock jumped back, which a
``ClockJumped`` records: between two jumps they can be searched.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.display import duration
from eventstore.format.positions import MAX_INDEX

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

_LISTED: Final = 3
"""Number of jumps of the clock that are listed."""


@dataclass(frozen=True, slots=True)
class LogPoint:
    """A point in a log: a record, and the last index in it that counts.

    Sequence 0 is the point before the first record; the largest index denotes the whole record.
    """

    sequence: int
    index: int = MAX_INDEX


class ClockSpan(NamedTuple):
    """Consecutive records, in whose times the clock does not jump."""

    first: int
    last: int
    jump_ms: int
    """The jump with which they begin, in milliseconds, negative: back; 0: the log begins here."""
    ends_ms: int
    """Time of the last one."""


async def time_of(source: LogSource, sequence: int) -> int:
    """Return the time of a record, Unix time in milliseconds.

    Raises CorruptLog, or CutMeanwhile.
    """
    return (await source.some([sequence]))[0].time_ms


async def clock_spans(source: LogSource) -> Sequence[ClockSpan]:
    """Return the parts of a log between the jumps of its clock; raises as :func:`time_of`."""
    spans: list[ClockSpan] = []
    end = source.last
    while end >= source.begin:
        record = (await source.some([end]))[0]
        first = record.jumps.record
        if first <= source.begin:
            spans.append(ClockSpan(source.begin, end, 0, record.time_ms))
            break
        before = (await source.some([first - 1]))[0]
        jump_ms = record.jumps.total_ms - before.jumps.total_ms
        spans.append(ClockSpan(first, end, jump_ms, record.time_ms))
        end = first - 1
    return spans[::-1]


def jump_notes(jumps: Iterable[tuple[int, int]]) -> list[str]:
    """Return a line about jumps of the clock, or none; each is a record and its milliseconds."""
    listed = [
        f"{'forward' if ms > 0 else 'back'} by {duration(abs(ms))} at record {record}"
        for record, ms in jumps
    ]
    if not listed:
        return []
    more = f" and {len(listed) - _LISTED} times more" if len(listed) > _LISTED else ""
    return [f"the clock jumped {', '.join(listed[-_LISTED:])}{more}: times are not continuous"]


async def last_until(source: LogSource, time_ms: int) -> int:
    """Return the last record before the time of the log exceeds a time (Unix, milliseconds).

    A clock that is set back later does not change that: the log had reached the time before.
    Returns the one before the first record if that is later. Raises as :func:`time_of`.
    """
    for span in await clock_spans(source):
        if span.ends_ms > time_ms:
            return await last_between(source, span.first - 1, span.last, time_ms)
    return source.last


async def all_until(source: LogSource, time_ms: int) -> int:
    """Return the last of all records that are not later than a time.

    Differs from :func:`last_until` where the clock was set back, so that the time came again.
    """
    for span in reversed(await clock_spans(source)):
        end = await last_between(source, span.first - 1, span.last, time_ms)
        if end >= span.first:
            return end
    return source.begin - 1


async def last_between(source: LogSource, low: int, high: int, time_ms: int) -> int:
    """Return the last record after ``low`` and up to ``high`` that is not later than a time.

    Returns ``low`` if all are later. Raises as :func:`time_of`.
    """
    while low < high:
        middle = (low + high + 1) // 2
        if await time_of(source, middle) <= time_ms:
            low = middle
        else:
            high = middle - 1
    return low
