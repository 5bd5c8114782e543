"""Records as the rows of rows=entries: a row for each position, as Arrow batches.

The events of a batch are grouped by type, each column is built once for each type that has it, and
the cells of all types are then brought into the order of the log by one ``take``: the cost of a
column depends on the number of its cells that are not null.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa

from eventstore.format.positions import INDEX_BITS
from spark.tables.arrays import indices, join_arrays, of_numbers
from spark.tables.arrow_types import ENTRIES, schema_of
from spark.tables.batch_layout import KIND_NAMES, KIND_VERSIONS, BatchLayout, PlacedEvents
from spark.tables.entry_columns import MAKERS, EntryColumn
from spark.tables.event_groups import MESSAGES, EventGroup
from spark.tables.payloads import PayloadAreas
from spark.tables.property_columns import (
    PROPERTIES,
    EntryProperties,
    block_array,
    entry_properties,
    property_array,
    turn_properties,
)
from spark.tables.row_widths import cut_rows
from spark.tables.single_message_events import as_json
from spark.tables.turn_columns import TURN_MAKERS, turn_json
from spark.tables.turn_groups import TurnGroup

if TYPE_CHECKING:
    from collections.abc import Container, Iterator, Sequence

    from eventstore.format.records import Record
    from spark.tables.integer_columns import Integers
    from spark.tables.row_filter import RowFilter


_WITH_PROPERTIES: Final = MESSAGES | {"Queued", "WillArmed"}


class EntryRows:
    """Makes the rows of rows=entries from records."""

    def __init__(self, columns: Sequence[str], wanted: RowFilter) -> None:
        self._columns = tuple(columns)
        self._wanted = wanted
        self._schema = schema_of("entries", columns)

    def batches(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some records in order; raise UnusualEvent for an unusual event."""
        layout = BatchLayout(records, self._wanted, turns=True)
        if not layout.total:
            return
        table = _Table(records, layout)
        table.check(self._columns)
        first, last = layout.between(self._wanted.first, self._wanted.last)
        for start, stop in cut_rows(layout.made, first, last):
            piece = _EntryPiece(table, start, stop)
            arrays = [piece.column(name) for name in self._columns]
            yield pa.RecordBatch.from_arrays(arrays, schema=self._schema)


class _Table:
    """The cells of a batch of records."""

    def __init__(self, records: Sequence[Record], layout: BatchLayout) -> None:
        self.records = records
        self.layout = layout
        self.areas = PayloadAreas(records)
        self._cells: dict[str, list[tuple[PlacedEvents, EntryColumn]]] = {}
        self._found: dict[int, EntryProperties] = {}

    def cells(self, column: str) -> list[tuple[PlacedEvents, EntryColumn]]:
        """Return the cells of a checked column, for each type that has it."""
        return self._cells.get(column, [])

    def payloads(self, made: PlacedEvents) -> tuple[Integers, Integers, Integers] | None:
        """Return the record, start and size of each payload of a group."""
        group = made.group
        owners = self.layout.record_of[made.events][group.event_of]
        if group.kind in MESSAGES:
            return owners, group.starts, group.sizes
        if group.kind == "WillArmed" and not isinstance(group, TurnGroup):
            return owners, group.integers("at"), group.integers("size")
        return None

    @cached_property
    def with_properties(self) -> list[PlacedEvents]:
        """The events whose messages may have properties."""
        return [
            made
            for made in self.layout.made
            if made.group.kind in _WITH_PROPERTIES and made.group.has_added()
        ]

    def properties(self, made: PlacedEvents) -> EntryProperties:
        """Return the properties of each entry of a group."""
        found = self._found.get(id(made))
        if found is None:
            records = [self.records[at] for at in self.layout.record_of[made.events].tolist()]
            found = self._found[id(made)] = (
                turn_properties(made.group, records)
                if isinstance(made.group, TurnGroup)
                else entry_properties(made.group, records)
            )
        return found

    def check(self, columns: Sequence[str]) -> None:
        """Raise UnusualEvent, before the first row, unless all of some columns can be built."""
        wanted = frozenset(columns)
        for made in self.layout.made:
            group = made.group
            for name, cells in _made_cells(group, wanted):
                self._cells.setdefault(name, []).append((made, cells))
            if "json" in columns and isinstance(group, EventGroup) and not group.single:
                as_json(self.layout, group, 0, 0)
            if "payload" in columns and (found := self.payloads(made)) is not None:
                self.areas.check(*found)


def _made_cells(
    group: EventGroup | TurnGroup, columns: Container[str]
) -> Iterator[tuple[str, EntryColumn]]:
    """Yield the cells of a group in each column that it has."""
    if isinstance(group, TurnGroup):
        turn_makers = TURN_MAKERS[group.kind]
        yield from ((name, turn_makers[name](group)) for name in turn_makers if name in columns)
        return
    makers = MAKERS[group.kind]
    for name in makers:
        if name in columns and (found := makers[name](group)) is not None:
            yield name, found


class _EntryPiece:
    """A range of rows of a batch of records."""

    def __init__(self, table: _Table, start: int, stop: int) -> None:
        self._table = table
        self._layout = layout = table.layout
        self._start, self._length = start, stop - start
        self._event_of = layout.event_of[start:stop]
        self._record_of = layout.record_of[self._event_of]
        self._entry = np.arange(start, stop) - layout.first_row[self._event_of]
        self._index = layout.index_of[self._event_of] + self._entry
        self._sequence = layout.sequences[self._record_of]
        self._within = {
            id(made): (*np.searchsorted(made.rows, (start, stop)).tolist(),) for made in layout.made
        }
        self._nulls: dict[pa.DataType, pa.Array] = {}
        self._takes: dict[tuple[tuple[int, int | None, int], ...], pa.Array] = {}

    def column(self, name: str) -> pa.Array:
        """Return a column of the rows."""
        own = getattr(self, f"_of_{name}", None)
        if own is not None:
            array: pa.Array = own()
            return array
        if name in PROPERTIES:
            return self._property(name)
        return self._gather(name, self._table.cells(name))

    def _nothing(self, name: str) -> pa.Array:
        """Return a column of nulls; most columns of most batches are such."""
        kind = ENTRIES[name]
        found = self._nulls.get(kind)
        if found is None:
            found = self._nulls[kind] = pa.nulls(self._length, kind)
        return found

    def _gather(self, name: str, cells: list[tuple[PlacedEvents, EntryColumn]]) -> pa.Array:
        if not cells:
            return self._nothing(name)
        key = tuple(
            (id(made), None if one.pick is None else id(one.pick), len(one.values))
            for made, one in cells
        )
        take = self._takes.get(key)
        if take is None:
            where = np.full(self._length, -1, np.int64)
            base = 0
            for made, one in cells:
                low, high = self._within[id(made)]
                rows = made.rows[low:high] - self._start
                if one.pick is None:
                    where[rows] = np.arange(base + low, base + high)
                else:
                    pick = one.pick[low:high]
                    where[rows] = np.where(pick < 0, -1, pick + base)
                base += len(one.values)
            take = self._takes[key] = indices(where)
        return join_arrays([one.values for _, one in cells]).take(take)

    def _sliced(self, name: str, pieces: list[tuple[PlacedEvents, pa.Array]]) -> pa.Array:
        """Bring cells that were built for these rows only into their order."""
        where = np.full(self._length, -1, np.int64)
        base = 0
        for made, _ in pieces:
            low, high = self._within[id(made)]
            where[made.rows[low:high] - self._start] = np.arange(base, base + high - low)
            base += high - low
        if not pieces:
            return self._nothing(name)
        return join_arrays([values for _, values in pieces]).take(indices(where))

    def _of_node(self) -> pa.Array:
        return self._layout.nodes(self._record_of)

    def _of_seq(self) -> pa.Array:
        return of_numbers(self._sequence, pa.int64())

    def _of_index(self) -> pa.Array:
        return of_numbers(self._index.astype(np.int32), pa.int32())

    def _of_position(self) -> pa.Array:
        return of_numbers(self._sequence << INDEX_BITS | self._index, pa.int64())

    def _of_time_ms(self) -> pa.Array:
        return of_numbers(self._layout.times[self._record_of], pa.int64())

    def _of_steady_ms(self) -> pa.Array:
        return of_numbers(self._layout.steady_times[self._record_of], pa.int64())

    def _of_time(self) -> pa.Array:
        return of_numbers(self._layout.times[self._record_of] * 1000, ENTRIES["time"])

    def _of_type(self) -> pa.Array:
        return KIND_NAMES.take(of_numbers(self._layout.codes[self._event_of], pa.int8()))

    def _of_version(self) -> pa.Array:
        return KIND_VERSIONS.take(of_numbers(self._layout.codes[self._event_of], pa.int8()))

    def _of_entry(self) -> pa.Array:
        return of_numbers(self._entry.astype(np.int32), pa.int32())

    def _of_entries(self) -> pa.Array:
        return of_numbers(self._layout.counts[self._event_of].astype(np.int32), pa.int32())

    def _of_damage(self) -> pa.Array:
        return self._nothing("damage")

    def _of_payload(self) -> pa.Array:
        pieces: list[tuple[PlacedEvents, pa.Array]] = []
        for made in self._layout.made:
            low, high = self._within[id(made)]
            if low < high and (found := self._table.payloads(made)) is not None:
                payloads = self._table.areas.cut(*(part[low:high] for part in found))
                pieces.append((made, payloads))
        return self._sliced("payload", pieces)

    def _of_block(self) -> pa.Array:
        pieces: list[tuple[PlacedEvents, pa.Array]] = []
        for made, found in self._properties():
            low, high = self._within[id(made)]
            pieces.append((made, block_array(found.blocks).take(indices(found.which[low:high]))))
        return self._sliced("block", pieces)

    def _property(self, name: str) -> pa.Array:
        """Return the column of a property by name."""
        pieces: list[tuple[PlacedEvents, pa.Array]] = []
        for made, found in self._properties():
            low, high = self._within[id(made)]
            values, valid = property_array(name, found.blocks)
            pick = found.which[low:high].copy()
            pick[pick >= 0] = np.where(valid[pick[pick >= 0]], pick[pick >= 0], -1)
            pieces.append((made, values.take(indices(pick))))
        return self._sliced(name, pieces)

    def _of_expires_at(self) -> pa.Array:
        pieces: list[tuple[PlacedEvents, pa.Array]] = []
        for made, found in self._properties():
            low, high = self._within[id(made)]
            times = found.expires[low:high]
            pieces.append((made, of_numbers(times, pa.int64(), times != 0)))
        return self._sliced("expires_at", pieces)

    def _properties(self) -> Iterator[tuple[PlacedEvents, EntryProperties]]:
        """Yield the properties of each entry, for the types that have some here."""
        for made in self._table.with_properties:
            low, high = self._within[id(made)]
            if low < high:
                yield made, self._table.properties(made)

    def _of_json(self) -> pa.Array:
        if self._layout.plain:
            return self._layout.scan.events(slice(self._start, self._start + self._length))
        pieces: list[tuple[PlacedEvents, pa.Array]] = []
        for made in self._layout.made:
            low, high = self._within[id(made)]
            if low < high:
                pieces.append((made, self._json(made.group, low, high)))
        return self._sliced("json", pieces)

    def _json(self, group: EventGroup | TurnGroup, low: int, high: int) -> pa.Array:
        if isinstance(group, TurnGroup):
            return turn_json(group, low, high)
        if group.single:
            return self._layout.scan.events(group.numbers[low:high])
        return as_json(self._layout, group, low, high)
