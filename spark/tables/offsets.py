"""Ends of the batches of a stream: ends of turns, within limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from eventstore.errors import CorruptLog
from eventstore.format.records import decode_record
from spark.tables.record_frames import frame_of
from spark.tables.stored_log import StoredLog, open_records

if TYPE_CHECKING:
    from collections.abc import Mapping

_MORE: Final = 8
"""Factor by which the number of examined records grows if no turn ended among the last ones."""


def whole_end(stored: StoredLog, above: int, last: int) -> int:
    """Return the last record up to a sequence at which a turn ends; ``above`` if there is none."""
    count = 1
    while last > above:
        first = max(above + 1, last - count + 1)
        found = above
        for sequence, data in stored.read(first, last):
            if _ends(sequence, data):
                found = sequence
        if found > above:
            return found
        last = first - 1
        count *= _MORE
    return above


def _ends(sequence: int, data: bytes) -> bool:
    """Return whether a turn ends with a record; a damaged one counts, as a batch must report it."""
    try:
        return frame_of(sequence, data).last
    except CorruptLog:
        return True


def within(stored: StoredLog, above: int, end: int, limits: Mapping[str, int]) -> int:
    """Return the end of a batch that begins behind a sequence, at most ``end``.

    ``limits`` are ``records``, ``bytes`` (by their average) and ``events``; a turn that exceeds
    them is taken alone.
    """
    most = end
    if "records" in limits:
        most = min(most, above + limits["records"])
    if "bytes" in limits:
        average = max(1, stored.size // (stored.last - stored.first + 1))
        most = min(most, above + max(1, limits["bytes"] // average))
    if "events" in limits:
        most = min(most, _of_events(stored, above, most, limits["events"]))
    found = end if most >= end else whole_end(stored, above, most)
    return found if found > above else _next_end(stored, most, end)


def _of_events(stored: StoredLog, above: int, last: int, limit: int) -> int:
    """Return the last record, at least the first one, up to which the limit of events holds."""
    seen = 0
    with open_records(stored, above + 1, last) as records:
        for sequence, data in records:
            try:
                seen += len(decode_record(sequence, data).raw_events)
            except CorruptLog:
                seen += 1
            if seen > limit:
                return max(above + 1, sequence - 1)
    return last


def _next_end(stored: StoredLog, above: int, end: int) -> int:
    """Return the first record behind a sequence at which a turn ends."""
    with open_records(stored, above + 1, end) as records:
        for sequence, data in records:
            if _ends(sequence, data):
                return sequence
    return end
