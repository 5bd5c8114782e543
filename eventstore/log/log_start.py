"""The valid beginnings of a log: record 1, or a cut that the log itself records.

The newest LogCut is always in the log, since a log is cut far before the position of the LogCut. A
log that begins after its newest LogCut has lost records that the broker did not remove.
"""

from collections.abc import AsyncIterator, Callable
from typing import NamedTuple

from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format.event_parsing import UnreadableEvent
from eventstore.format.node_events import LogCut
from eventstore.format.positions import Position, position
from eventstore.format.records import Record, decode_record, mentions

_WORD = b'"LogCut"'
_LOOK_BACK = 64
"""Number of records that are searched first; each further attempt searches 4 times as many, up to a
bound."""
_LOOK_MAX = 4096


class RecordedCut(NamedTuple):
    """A cut as recorded in the log."""

    at: Position
    """Position of the LogCut."""
    time_ms: int
    """Time of the cut, Unix time in milliseconds."""
    event: LogCut


class LostBeginning(CorruptLog):
    """Records at the beginning of a log are missing, and no LogCut accounts for them."""

    def __init__(self, first: int, cut: LogCut | None) -> None:
        """Describe a log that begins with record ``first``; ``cut`` is its newest LogCut."""
        since = 1 if cut is None else cut.first
        missing = f"and all up to {first - 1} are" if since < first - 1 else "is"
        evidence = (
            "it contains no record of a cut"
            if cut is None
            else f"its last recorded cut was before record {cut.first}"
        )
        super().__init__(
            since, f"{missing} gone: the log begins with record {first}, and {evidence}"
        )
        intact = "no record before it; restore a backup, or begin with another --data-dir"
        self.args = (f"the log is damaged: record {since} {self.what}; {intact}",)


def check_beginning(first: int, cut: RecordedCut | None) -> None:
    """Raise LostBeginning unless a log with this newest cut may begin with a record."""
    if first > 1 and (cut is None or cut.event.first < first):
        raise LostBeginning(first, None if cut is None else cut.event)


def check_first(record: Record, cut: RecordedCut | None) -> None:
    """Raise CorruptLog when the first record after the cut has the wrong predecessor."""
    if cut is None or cut.event.first != record.sequence:
        return
    if record.previous.hex() != cut.event.link:
        raise CorruptLog(record.sequence, "does not continue the record that was cut off before it")


async def find_cut(
    read: Callable[[int, int], AsyncIterator[tuple[int, bytes]]], first: int, last: int
) -> RecordedCut | None:
    """Return the newest cut that the log records, searching backwards from its end.

    ``read(first, last)`` yields (sequence, bytes) of the stored records. Records that cannot be
    read are skipped: reading the log reports them.
    """
    back = _LOOK_BACK
    stop = last
    while stop >= first:
        start = max(first, stop - back + 1)
        cut: RecordedCut | None = None
        async for sequence, data in read(start, stop):
            if mentions(data, (_WORD,)):
                cut = _cut_in(sequence, data) or cut
        if cut is not None:
            return cut
        stop = start - 1
        back = min(4 * back, _LOOK_MAX)
    return None


def _cut_in(sequence: int, data: bytes) -> RecordedCut | None:
    cut: RecordedCut | None = None
    try:
        record = decode_record(sequence, data)
        for index, event in record.events():
            if isinstance(event, LogCut):
                cut = RecordedCut(position(sequence, index), record.time_ms, event)
    except (CorruptLog, UnknownLogFormat, UnreadableEvent):
        return None
    return cut
