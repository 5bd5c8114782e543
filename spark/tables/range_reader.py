"""Reads a range of a log into Arrow batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from eventstore.format.event_parsing import UnknownEvent, UnreadableEvent
from eventstore.format.positions import position
from eventstore.format.records import Record, decode_record
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from projections.audit.fact_scan import CheckedRecord
from projections.audit.local_facts import reduce_collections
from spark.runtime.marked_errors import name_log_in_errors
from spark.tables.columns import Columns
from spark.tables.decoder import Decoder, ParsedRecord, sparse_rows
from spark.tables.options import DROPMALFORMED, FAILFAST
from spark.tables.record_checks import RecordChecker
from spark.tables.record_frames import frame_of, record_opener
from spark.tables.row_filter import PushedFilters, RowFilter
from spark.tables.stored_log import RecordRange

if TYPE_CHECKING:
    import pyarrow as pa


NEED_EVENTS: Final = frozenset({"events", "entries"})
"""Columns that need the events of records."""


def record_rows(
    node: str, records: Sequence[CheckedRecord], columns: Sequence[str]
) -> pa.RecordBatch:
    """Return a row for each found record; raises UnreadableEvent."""
    rows = [_row(node, record) for record in records]
    if NEED_EVENTS & set(columns):
        decoder = Decoder(Columns.of("entries"), RowFilter())
        for row, record in zip(rows, records, strict=True):
            if record.record is not None:
                parsed = decoder.parse(record.record)
                row["events"], row["entries"] = len(parsed.events), parsed.rows
    return sparse_rows(Columns.of("records", columns), rows)


def _row(node: str, checked: CheckedRecord) -> dict[str, Any]:
    row: dict[str, Any] = {
        "node": node,
        "seq": checked.sequence,
        "data": checked.data,
        "damage": checked.damage,
    }
    if checked.data is not None:
        row["bytes"] = len(checked.data)
    record = checked.record
    if record is not None:
        row |= {
            "node": record.node,
            "time": record.time_ms * 1000,
            "time_ms": record.time_ms,
            "steady_ms": record.steady_ms,
            "link": record.link.hex(),
            "previous": record.previous.hex(),
            "part": record.part,
            "last": record.last,
            "void": checked.void,
        }
    return row


_ROWS: Final = 1 << 14
_BYTES: Final = 4 << 20
"""Rows and bytes of records that are converted together: a batch has a cost for each column."""


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
        with name_log_in_errors(part.stored.stream), reduce_collections():
            yield from self._batches(part)

    def _batches(self, part: RecordRange) -> Iterator[pa.RecordBatch]:
        strict = self.mode == FAILFAST
        decoder = Decoder(self.columns, self.pushed.wanted(part.start, part.until))
        opener = self._opener(decoder)
        records = RecordChecker(part, opener, strict=strict, lossy=self.lossy).records()
        if self.mode == DROPMALFORMED:
            records = (checked for checked in records if checked.damage is None)
        if self.columns.rows == "records":
            return self._records(part, records)
        return self._events(decoder, part, records)

    def _opener(self, decoder: Decoder) -> Callable[[int, bytes], Record]:
        """Return the decoder of records: with their events only where those are needed."""
        if self.columns.rows != "records":
            return record_opener(
                self.pushed.types, self.pushed.sessions, whole_turns=decoder.whole_turns
            )
        return decode_record if NEED_EVENTS & {*self.columns.names} else frame_of

    def _records(
        self, part: RecordRange, records: Iterator[CheckedRecord]
    ) -> Iterator[pa.RecordBatch]:
        held: list[CheckedRecord] = []
        size = 0
        for checked in records:
            held.append(checked)
            size += len(checked.data or b"")
            if len(held) >= _ROWS or size >= _BYTES:
                yield record_rows(_node(part), held, self.columns.names)
                held, size = [], 0
        if held:
            yield record_rows(_node(part), held, self.columns.names)

    def _events(
        self, decoder: Decoder, part: RecordRange, records: Iterator[CheckedRecord]
    ) -> Iterator[pa.RecordBatch]:
        held: list[ParsedRecord] = []
        rows = size = 0
        for checked in records:
            if checked.void:
                continue
            damage = checked.damage
            if damage is None and checked.record is not None:
                try:
                    held.append(decoder.parse(checked.record))
                    rows += held[-1].rows
                    size += len(checked.record.header) + len(checked.record.payload)
                except UnreadableEvent as error:
                    damage = self._unreadable(error)
            if held and (damage is not None or rows >= _ROWS or size >= _BYTES):
                yield from self._rows(decoder, part, held)
                held, rows, size = [], 0, 0
            if damage is not None:
                yield from self._damage(part, checked.sequence, damage)
        if held:
            yield from self._rows(decoder, part, held)

    def _rows(
        self, decoder: Decoder, part: RecordRange, parsed: Sequence[ParsedRecord]
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from decoder.rows(parsed)
        except UnreadableEvent as error:
            damage = self._unreadable(error)
            if len(parsed) == 1:
                yield from self._damage(part, parsed[0].record.sequence, damage)
                return
            for each in parsed:
                yield from self._rows(decoder, part, [each])

    def _unreadable(self, error: UnreadableEvent) -> str:
        """Return what an event is damaged by; raise the error where damage is not shown."""
        if self.mode == FAILFAST or isinstance(error, UnknownEvent):
            raise error
        return str(error)

    def _damage(self, part: RecordRange, sequence: int, damage: str) -> Iterator[pa.RecordBatch]:
        """Yield the row for a damaged record, which has neither type nor session."""
        shown = self.pushed.types is None and self.pushed.sessions is None
        if shown and self.mode != DROPMALFORMED:
            row: dict[str, object] = {
                "node": _node(part),
                "seq": sequence,
                "index": 0,
                "position": position(sequence, 0),
                "damage": damage,
            }
            yield sparse_rows(self.columns, [row])


def _node(part: RecordRange) -> str:
    return part.stored.stream.removeprefix(LOG_STREAM_PREFIX)
