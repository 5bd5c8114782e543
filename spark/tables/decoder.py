"""Records as Arrow batches: pure Python and Arrow, without Spark.

Events are not converted to objects on the way. If an event does not have the form that this version
of foldmq writes (an older version, a field with a default, a wrong type), the batch is read again
through ``parse_event``, which upcasts it or reports the error and its place.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, cast

import pyarrow as pa

from eventstore.format.event_parsing import UnreadableEvent
from eventstore.format.records import decode_record, json_header
from spark.tables.arrow_types import GRAINS, schema_of
from spark.tables.entries import EntryRows
from spark.tables.events import EventRows
from spark.tables.integer_columns import UnusualEvent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventstore.format.records import Record
    from spark.tables.columns import Columns
    from spark.tables.row_filter import RowFilter


class RowMaker(Protocol):
    """Converts records to rows."""

    def batches(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Yield the rows; raise UnusualEvent, before the first, for an event of unusual form."""


class Decoder:
    """Converts records with correct checksums to rows of entries or events."""

    def __init__(self, columns: Columns, wanted: RowFilter) -> None:
        self._maker: RowMaker = (EntryRows if columns.rows == "entries" else EventRows)(
            columns.names, wanted
        )

    def batches(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some records in order.

        Raises UnreadableEvent, before the first batch, for an invalid event, and UnknownEvent for
        one of a later foldmq.
        """
        try:
            yield from self._maker.batches(records)
        except UnusualEvent:
            yield from self._again(records)

    def _again(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        records = [upcast_record(record) for record in records]
        try:
            yield from self._maker.batches(records)
        except UnusualEvent:
            for record in records:
                self._check(record)
            yield from self._in_halves(records)

    def _check(self, record: Record) -> None:
        """Raise UnreadableEvent unless a record can be converted by itself."""
        try:
            for _ in self._maker.batches([record]):
                return
        except UnusualEvent as inconsistency:
            what = f"record {record.sequence} holds {_article(str(inconsistency))}"
            raise UnreadableEvent(what) from None

    def _in_halves(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of records that are valid one by one, but together exceed a batch."""
        middle = len(records) // 2
        for some in (records[:middle], records[middle:]):
            try:
                yield from self._maker.batches(some)
            except UnusualEvent:
                if len(some) == 1:
                    raise
                yield from self._in_halves(some)


def _article(what: str) -> str:
    return what if what.startswith(("a ", "an ")) else f"an event {what}"


def upcast_record(record: Record) -> Record:
    """Return the record with its events in their current versions and with all fields.

    Raises CorruptLog for an invalid header, UnreadableEvent, and UnknownEvent.
    """
    record = decode_record(record.sequence, cast("bytes", record.payload.obj))
    events = [event for _, event in record.events()]
    header = json_header(
        record.node, record.time_ms, events, record.part, last=record.last, jumps=record.jumps
    )
    return replace(record, header=header)


def sparse_rows(columns: Columns, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows given by their few columns that are not null."""
    known = GRAINS[columns.rows]
    arrays = [pa.array([row.get(name) for row in rows], known[name]) for name in columns.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns.rows, columns.names))
