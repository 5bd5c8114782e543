"""Reads a range of a log into Arrow batches."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eventstore.errors import CorruptLog
from eventstore.format.event_parsing import UnknownEvent, UnreadableEvent
from eventstore.format.positions import position
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from projections.audit.fact_scan import CheckedRecord
from spark.runtime.marked_errors import name_log_in_errors
from spark.tables.decoder import Decoder, sparse_rows
from spark.tables.options import DROPMALFORMED, FAILFAST
from spark.tables.record_checks import RecordChecker
from spark.tables.record_frames import frame_of, mentioning
from spark.tables.records import record_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from eventstore.format.records import Record
    from spark.tables.columns import Columns
    from spark.tables.row_filter import PushedFilters
    from spark.tables.stored_log import RecordRange

_HEADERS: Final = 1536 << 10
"""Bytes of headers decoded together: a batch has a cost for each column."""
_FEWEST: Final = 4 << 10
_ROWS: Final = 1 << 15
_BYTES: Final = 8 << 20


@dataclass(frozen=True, slots=True)
class RangeReader:
    """Reads ranges with the columns, filters and mode of a query."""

    columns: Columns
    pushed: PushedFilters
    mode: str
    """One of the modes of ``spark.tables.options``."""
    lossy: bool = False
    """Whether records that were cut off meanwhile are left out."""

    def read(self, part: RecordRange) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range in order.

        Raises SparkFailure naming the log: for damage, unless it is to be shown or dropped, and
        always for events of a later foldmq.
        """
        with name_log_in_errors(part.stored.stream):
            yield from self._batches(part)

    def _batches(self, part: RecordRange) -> Iterator[pa.RecordBatch]:
        strict = self.mode == FAILFAST
        found = RecordChecker(part, frame_of, strict=strict, lossy=self.lossy).records()
        if self.mode == DROPMALFORMED:
            found = (one for one in found if one.damage is None)
        if self.columns.rows == "records":
            return self._records(part, found)
        return self._events(part, found)

    def _records(
        self, part: RecordRange, found: Iterator[CheckedRecord]
    ) -> Iterator[pa.RecordBatch]:
        for some in _gathered(found, _Bound()):
            yield record_rows(_node(part), some, self.columns.names)

    def _events(
        self, part: RecordRange, found: Iterator[CheckedRecord]
    ) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(self.columns, self.pushed.wanted(part.start, part.until))
        mentions = mentioning(self.pushed.types, self.pushed.sessions)
        bound = _Bound()
        for some in _gathered(_wanted(found, mentions), bound):
            rows = 0
            for piece in _pieces(some):
                for batch in (
                    self._damage(part, piece)
                    if isinstance(piece, CheckedRecord)
                    else self._decoded(decoder, part, piece)
                ):
                    rows += batch.num_rows
                    yield batch
            bound.learn(some, rows)

    def _decoded(
        self, decoder: Decoder, part: RecordRange, records: Sequence[Record]
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from decoder.batches(records)
        except UnknownEvent:
            raise
        except (CorruptLog, UnreadableEvent) as error:
            if self.mode == FAILFAST:
                raise
            if len(records) > 1:
                for record in records:
                    yield from self._decoded(decoder, part, [record])
            elif self.mode != DROPMALFORMED:
                bad = records[0]
                yield from self._damage(part, CheckedRecord(bad.sequence, None, bad, str(error)))

    def _damage(self, part: RecordRange, found: CheckedRecord) -> Iterator[pa.RecordBatch]:
        """Yield the row for a damaged record, which has neither type nor session."""
        if self.pushed.types is None and self.pushed.sessions is None:
            row: dict[str, object] = {
                "node": _node(part),
                "seq": found.sequence,
                "index": 0,
                "position": position(found.sequence, 0),
                "damage": found.damage,
            }
            yield sparse_rows(self.columns, [row])


def _node(part: RecordRange) -> str:
    return part.stored.stream.removeprefix(LOG_STREAM_PREFIX)


def _wanted(
    found: Iterable[CheckedRecord], mentions: Callable[[bytes], bool] | None
) -> Iterator[CheckedRecord]:
    """Yield the records that may have rows: not void, with a wanted type and session."""
    for one in found:
        if one.void:
            continue
        if mentions is None or one.record is None or one.data is None or mentions(one.data):
            yield one


class _Bound:
    """The bytes of headers to decode together: fewer if they expand to many rows."""

    def __init__(self) -> None:
        self.size = _HEADERS

    def learn(self, some: Sequence[CheckedRecord], rows: int) -> None:
        """Adapt to the number of rows in some records."""
        size = sum(map(_header_size, some))
        self.size = max(_FEWEST, min(_HEADERS, _ROWS * size // max(rows, 1)))


def _header_size(one: CheckedRecord) -> int:
    return 0 if one.record is None else len(one.record.header)


def _gathered(found: Iterable[CheckedRecord], bound: _Bound) -> Iterator[list[CheckedRecord]]:
    """Yield records in groups of bounded size."""
    some: list[CheckedRecord] = []
    headers = size = 0
    for one in found:
        some.append(one)
        size += len(one.data or b"")
        headers += _header_size(one)
        if headers >= bound.size or size >= _BYTES:
            yield some
            some = []
            headers = size = 0
    if some:
        yield some


def _pieces(some: Sequence[CheckedRecord]) -> Iterator[list[Record] | CheckedRecord]:
    """Yield damaged records singly and intact ones in lists, in order."""
    records: list[Record] = []
    for one in some:
        if one.damage is None and one.record is not None:
            records.append(one.record)
            continue
        if records:
            yield records
            records = []
        yield one
    if records:
        yield records
