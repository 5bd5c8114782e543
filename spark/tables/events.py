"""Records as the rows of rows=events: a row for each event as it was written."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from eventstore.format.positions import INDEX_BITS
from spark.tables.arrays import indices, of_numbers
from spark.tables.arrow_types import EVENTS, schema_of
from spark.tables.batch_layout import KIND_NAMES, KIND_VERSIONS, BatchLayout
from spark.tables.event_groups import MESSAGES
from spark.tables.integer_columns import Integers, sums_before
from spark.tables.payloads import PayloadAreas
from spark.tables.row_widths import MAX_ROWS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventstore.format.records import Record
    from spark.tables.row_filter import RowFilter


class EventRows:
    """Makes the rows of rows=events from records."""

    def __init__(self, columns: Sequence[str], wanted: RowFilter) -> None:
        self._columns = tuple(columns)
        self._wanted = wanted
        self._schema = schema_of("events", columns)

    def batches(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some records in order; raise UnusualEvent for an unusual event."""
        layout = BatchLayout(records, self._wanted)
        if not layout.groups:
            return
        numbers = np.sort(np.concatenate([group.numbers for group in layout.groups]))
        at = layout.sequences[layout.record_of[numbers]] << INDEX_BITS | layout.index_of[numbers]
        low = int(np.searchsorted(at, self._wanted.first))
        last = self._wanted.last
        high = len(at) if last is None else int(np.searchsorted(at, last, "right"))
        payloads = _Payloads(records, layout) if "payload" in self._columns else None
        for start in range(low, high, MAX_ROWS):
            piece = _EventPiece(records, layout, numbers[start : min(start + MAX_ROWS, high)])
            arrays = [
                payloads.of(piece.numbers)
                if payloads is not None and name == "payload"
                else piece.column(name)
                for name in self._columns
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Payloads:
    """The part of each event in the payload area of its record: properties, then payloads."""

    def __init__(self, records: Sequence[Record], layout: BatchLayout) -> None:
        self._areas = PayloadAreas(records)
        self._owners = layout.record_of
        self._starts = np.full(len(layout.scan), -1, np.int64)
        self._sizes = np.zeros(len(layout.scan), np.int64)
        for group in layout.groups:
            if group.kind in MESSAGES:
                sums = np.concatenate(([0], np.cumsum(group.sizes)))
                firsts = sums_before(group.counts)
                payloads = sums[firsts + group.counts] - sums[firsts]
                self._sizes[group.numbers] = payloads + group.block_bytes
            elif group.kind == "WillArmed":
                self._sizes[group.numbers] = group.integers("size") + group.block_bytes
            else:
                continue
            self._starts[group.numbers] = group.integers("at") - group.block_bytes
            some = group.numbers
            self._areas.check(self._owners[some], self._starts[some], self._sizes[some])

    def of(self, numbers: Integers) -> pa.Array:
        """Return the payloads of some events; null for an event without payloads."""
        some = np.flatnonzero(self._starts[numbers] >= 0)
        if not len(some):
            return pa.nulls(len(numbers), pa.binary())
        chosen = numbers[some]
        payloads = self._areas.cut(self._owners[chosen], self._starts[chosen], self._sizes[chosen])
        where = np.full(len(numbers), -1, np.int64)
        where[some] = np.arange(len(some))
        return payloads.take(indices(where))


class _EventPiece:
    """Some events in order."""

    def __init__(self, records: Sequence[Record], layout: BatchLayout, numbers: Integers) -> None:
        self.numbers = numbers
        self._records = records
        self._layout = layout
        self._record_of = layout.record_of[numbers]

    def column(self, name: str) -> pa.Array:
        """Return a column of the events."""
        array: pa.Array = getattr(self, f"_of_{name}")()
        return array

    def _of_node(self) -> pa.Array:
        return self._layout.nodes(self._record_of)

    def _of_seq(self) -> pa.Array:
        return of_numbers(self._layout.sequences[self._record_of], pa.int64())

    def _of_index(self) -> pa.Array:
        return of_numbers(self._layout.index_of[self.numbers].astype(np.int32), pa.int32())

    def _of_position(self) -> pa.Array:
        sequences = self._layout.sequences[self._record_of]
        return of_numbers(sequences << INDEX_BITS | self._layout.index_of[self.numbers], pa.int64())

    def _of_entries(self) -> pa.Array:
        return of_numbers(self._layout.counts[self.numbers].astype(np.int32), pa.int32())

    def _of_time_ms(self) -> pa.Array:
        return of_numbers(self._layout.times[self._record_of], pa.int64())

    def _of_steady_ms(self) -> pa.Array:
        return of_numbers(self._layout.steady_times[self._record_of], pa.int64())

    def _of_time(self) -> pa.Array:
        return of_numbers(self._layout.times[self._record_of] * 1000, EVENTS["time"])

    def _of_type(self) -> pa.Array:
        return KIND_NAMES.take(of_numbers(self._layout.codes[self.numbers], pa.int8()))

    def _of_version(self) -> pa.Array:
        return KIND_VERSIONS.take(of_numbers(self._layout.codes[self.numbers], pa.int8()))

    def _of_session(self) -> pa.Array:
        return self._layout.sessions(self.numbers)

    def _of_part(self) -> pa.Array:
        parts = np.array([record.part for record in self._records], np.int32)
        return of_numbers(parts[self._record_of], pa.int32())

    def _of_json(self) -> pa.Array:
        return self._layout.scan.events(self.numbers)

    def _of_damage(self) -> pa.Array:
        return pa.nulls(len(self.numbers), pa.string())
