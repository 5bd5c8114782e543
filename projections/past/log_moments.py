"""Moments of several logs: a time is a point in each of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.errors import naming_log
from eventstore.partitions import directory_name
from eventstore.reading.log_points import LogPoint, last_until

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventstore.reading.log_source import LogSource


async def points_in_logs(logs: Mapping[str, LogSource], time_ms: int | None) -> dict[str, LogPoint]:
    """Return the last record of each log that is not later than a time; None: its last one.

    The time is Unix time in milliseconds. Raises CorruptLog or CutMeanwhile.
    """
    found = {}
    for log, source in logs.items():
        with naming_log(log):
            last = source.last if time_ms is None else await last_until(source, time_ms)
        found[log] = LogPoint(last)
    return found


def short_name(log: str) -> str:
    """Return a name of a log that is unique among those of its node or cluster: ``p0``."""
    return directory_name(log) or log
