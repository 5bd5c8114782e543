"""Points in a log, and the last record at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventstore.format import MAX_INDEX

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource


@dataclass(frozen=True, slots=True)
class LogPoint:
    """A point in a log: a record, and the last index in it that counts.

    Sequence 0 is the point before the first record; the largest index denotes the whole record.
    """

    sequence: int
    index: int = MAX_INDEX


async def time_of(source: LogSource, sequence: int) -> int:
    """Return the time of a record, Unix time in milliseconds.

    Raises CorruptLog, or CutMeanwhile.
    """
    return (await source.some([sequence]))[0].time_ms


async def last_until(source: LogSource, time_ms: int) -> int:
    """Return the last record that is not later than a time (Unix, milliseconds).

    Returns the one before the first record if all are later. Raises as :func:`time_of`.
    """
    return await last_between(source, source.begin - 1, source.last, time_ms)


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
