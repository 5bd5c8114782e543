"""Records as Arrow batches of entries or events: pure Python and Arrow, without Spark.

Events are read by the broker's own parser. Those of a type are collected, each column is built once
for each type that has it, and its cells are brought into the order of the log by one ``take``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import accumulate, chain, islice
from typing import Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import VERSIONS, UnreadableEvent, entries
from eventstore.format.fast_parse import parse_events, parse_turn
from eventstore.format.positions import INDEX_BITS, MAX_INDEX
from eventstore.format.records import Record
from eventstore.format.turn_expansion import expanded
from spark.tables.arrays import Flags, Integers, array_of, binaries_of, indices, texts_of
from spark.tables.arrow_types import GRAINS, schema_of
from spark.tables.columns import Columns
from spark.tables.entry_columns import MAKERS, TEXTS, Cells
from spark.tables.entry_texts import entry_texts
from spark.tables.event_groups import (
    WITH_BLOCKS,
    EventGroup,
    TableEvent,
    TurnGroup,
    UnusualEvent,
    kind_of,
    numbers_within,
    sums_before,
)
from spark.tables.row_filter import RowFilter

MAX_ROWS: Final = 1 << 15
"""Maximum rows of an Arrow batch."""
_BYTES: Final = 32 << 20
"""Maximum bytes of text repeated by the rows of a batch: an event about 30 000 messages is short,
but each of its rows repeats its session and its filter, which may have 64 KiB."""


_OF_RECORDS: Final[Mapping[str, Callable[[Record], Any]]] = {
    "node": lambda record: record.node,
    "seq": lambda record: record.sequence,
    "time": lambda record: record.time_ms * 1000,
    "time_ms": lambda record: record.time_ms,
    "steady_ms": lambda record: record.steady_ms,
    "part": lambda record: record.part,
}
"""The columns that all events of a record share; ``part`` of entries is that of their events."""


class ParsedRecord(NamedTuple):
    """A record and its wanted events."""

    record: Record
    events: Sequence[TableEvent]
    firsts: Sequence[int]
    """The index of the first entry of each event."""
    counts: Sequence[int]
    """The number of its entries."""

    @property
    def rows(self) -> int:
        """Number of entries of all events."""
        return sum(self.counts)


class Decoder:
    """Converts records with correct checksums to rows of entries or events."""

    def __init__(self, columns: Columns, row_filter: RowFilter) -> None:
        self._columns = columns
        self._wanted = row_filter
        self.whole_turns: Final = columns.rows == "entries" and row_filter.sessions is None
        """Whether events of turns need not be expanded."""

    def parse(self, record: Record) -> ParsedRecord:
        """Return a record with its wanted events.

        Raises UnreadableEvent for an invalid event, and UnknownEvent for one of a later foldmq.
        """
        try:
            events, counts = self._events_of(record)
        except IndexError:
            what = f"record {record.sequence} holds a run that is none"
            raise UnreadableEvent(what) from None
        firsts = [0, *accumulate(counts)]
        if counts and (min(counts) < 0 or firsts[-1] > MAX_INDEX + 1):
            what = f"record {record.sequence} holds an event with a count that cannot be"
            raise UnreadableEvent(what)
        if self._wanted.types is not None or self._wanted.sessions is not None:
            kept = [at for at, event in enumerate(events) if self._has(event)]
            events = [events[at] for at in kept]
            firsts = [firsts[at] for at in kept]
            counts = [counts[at] for at in kept]
        return ParsedRecord(record, events, firsts[: len(counts)], counts)

    def _events_of(self, record: Record) -> tuple[list[TableEvent], list[int]]:
        """Return the events of a record, and the number of entries of each."""
        events: list[TableEvent] = []
        counts: list[int] = []
        index = 0
        for raw in record.raw_events:
            turn: Any = parse_turn(raw) if self.whole_turns else None
            if turn is not None:
                parsed = [turn]
            else:
                parsed = [event for _, event in parse_events(record.sequence, expanded(raw), index)]
            events += parsed
            counts += map(entries, parsed)
            index = sum(counts)
        return events, counts

    def _has(self, event: TableEvent) -> bool:
        """Return whether an event is of a wanted type and session."""
        types, sessions = self._wanted.types, self._wanted.sessions
        if types is not None and kind_of(event) not in types:
            return False
        return sessions is None or getattr(event, "session", None) in sessions

    def batches(self, records: Sequence[Record]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some records in order; raises as :meth:`rows` and :meth:`parse`."""
        return self.rows([self.parse(record) for record in records])

    def rows(self, parsed: Sequence[ParsedRecord]) -> Iterator[pa.RecordBatch]:
        """Yield the rows of some records in order.

        Raises UnreadableEvent, before the first batch, for an event whose columns do not fit
        together.
        """
        try:
            return _Table(parsed, self._columns, self._wanted).batches()
        except (UnusualEvent, ValueError, IndexError, OverflowError) as error:
            if len(parsed) == 1:
                what = f"record {parsed[0].record.sequence} holds {error}"
                raise UnreadableEvent(what) from None
        for each in parsed:
            self.rows([each])
        raise UnreadableEvent(f"records from {parsed[0].record.sequence} on cannot be read")


class _Table:
    """The rows of some records."""

    def __init__(
        self, parsed: Sequence[ParsedRecord], columns: Columns, row_filter: RowFilter
    ) -> None:
        self._columns = columns
        self._types = GRAINS[columns.rows]
        self._records = [each.record for each in parsed]
        self._events = [*chain.from_iterable(each.events for each in parsed)]
        self._counts = _integers(chain.from_iterable(each.counts for each in parsed))
        firsts = _integers(chain.from_iterable(each.firsts for each in parsed))
        spread = self._counts if self._entries else np.ones(len(firsts), np.int64)
        per_record = [len(each.events) for each in parsed]
        self._owners = np.repeat(np.arange(len(parsed)), per_record)
        """For each event, the number of its record."""
        self._event_of = np.repeat(np.arange(len(firsts)), spread)
        self._first_row = sums_before(spread)
        self._entry = numbers_within(spread)
        self._index = firsts[self._event_of] + self._entry
        self._record_of = self._owners[self._event_of]
        self._groups = self._grouped()
        sequences = _integers(record.sequence for record in self._records)
        self._positions = sequences[self._record_of] << INDEX_BITS | self._index
        self._low = int(np.searchsorted(self._positions, row_filter.first))
        last_position = row_filter.last
        self._high = len(self._positions)
        if last_position is not None:
            self._high = int(np.searchsorted(self._positions, last_position, "right"))
        if "payload" in columns.names:
            self._data, self._offsets, self._with_payload = self._payloads()
        if "json" in columns.names and self._entries:
            for group in self._groups:
                group.check_columns()
        self._cells = {name: self._cells_of(name) for name in columns.names}

    @property
    def _entries(self) -> bool:
        return self._columns.rows == "entries"

    def _grouped(self) -> list[EventGroup]:
        """Return the events of each type."""
        by_type: dict[tuple[str, bool], list[int]] = defaultdict(list)
        for number, event in enumerate(self._events):
            by_type[kind_of(event), event.e.startswith("Turn")].append(number)
        groups: list[EventGroup] = []
        for (kind, of_turns), numbers in by_type.items():
            places = np.array(numbers)
            events = [self._events[at] for at in numbers]
            records = [self._records[at] for at in self._owners[places].tolist()]
            group = TurnGroup if of_turns else EventGroup
            groups.append(group(kind, places, events, self._counts[places], records))
        return groups

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of limited size."""
        schema = schema_of(self._columns.rows, self._columns.names)
        texts = islice(self._json(), self._low, None)
        for start, stop in self._cut():
            size = stop - start
            arrays: list[pa.Array] = []
            for name in self._columns.names:
                kind, cells = self._types[name], self._cells[name]
                if name == "json":
                    arrays.append(texts_of([*islice(texts, size)]))
                elif name == "payload":
                    valid, offsets = self._with_payload, self._offsets
                    arrays.append(
                        binaries_of(self._data, offsets[start : stop + 1], valid[start:stop])
                    )
                elif cells is None:
                    arrays.append(pa.nulls(size, kind))
                else:
                    values, where = cells
                    rows = slice(start, stop)
                    arrays.append(
                        values[rows] if where is None else values.take(indices(where[rows]))
                    )
            yield pa.RecordBatch.from_arrays(arrays, schema=schema)

    def _cut(self) -> Iterator[tuple[int, int]]:
        """Yield ranges of rows of one batch each."""
        widths = np.zeros(len(self._events), np.int64)
        for group in self._groups:
            widths[group.numbers] = group.widths(TEXTS[group.kind])
        sums = np.concatenate(([0], np.cumsum(widths[self._event_of])))
        start = self._low
        while start < self._high:
            within = int(np.searchsorted(sums, sums[start] + _BYTES, "right")) - 1
            stop = max(start + 1, min(start + MAX_ROWS, self._high, within))
            yield start, stop
            start = stop

    def _cells_of(self, name: str) -> tuple[pa.Array, Integers | None] | None:
        """Return the cells of a column; None: all are null, or they are built for each batch."""
        if name in ("json", "payload", "damage"):
            return None
        common = self._common_cells(name)
        if common is None:
            return self._gathered(name)
        return array_of(common.values, self._types[name]), common.where

    def _common_cells(self, name: str) -> Cells | None:
        """Return the cells of a column that all events have; None: another column."""
        if name in _OF_RECORDS and (name != "part" or not self._entries):
            return Cells([*map(_OF_RECORDS[name], self._records)], self._record_of)
        if name == "position":
            return Cells(self._positions)
        if name == "index":
            return Cells(self._index)
        if name in ("entry", "entries"):
            return Cells(self._entry_numbers[name == "entries"])
        if name in ("type", "version"):
            codes = np.zeros(len(self._events), np.int64)
            for code, group in enumerate(self._groups):
                codes[group.numbers] = code
            kinds = [group.kind for group in self._groups]
            values = kinds if name == "type" else [VERSIONS[kind] for kind in kinds]
            return Cells(values, codes[self._event_of])
        return None

    def _gathered(self, name: str) -> tuple[pa.Array, Integers] | None:
        """Return the cells of all types that have a column, in the order of the log."""
        where = np.full(len(self._event_of), -1)
        arrays: list[pa.Array] = []
        base = 0
        for group in self._groups:
            if (maker := MAKERS[group.kind].get(name)) is None:
                continue
            values, pick = maker(group)
            rows = self._rows_of(group)
            if not self._entries:  # a value for each event
                pick = np.arange(len(group.events))
            if pick is None:
                where[rows] = np.arange(base, base + group.total)
            else:
                where[rows] = np.where(pick < 0, -1, pick + base)
            arrays.append(self._array(name, values))
            base += len(values)
        return (pa.concat_arrays(arrays), where) if base else None

    def _rows_of(self, group: EventGroup) -> Integers:
        rows = self._first_row[group.numbers]
        return rows[group.event_of] + group.entry if self._entries else rows

    @cached_property
    def _entry_numbers(self) -> tuple[Integers, Integers]:
        """For each row the number of its entry in an event of one session, and how many it has."""
        if not self._entries:
            return self._entry, self._counts
        entry, entries = np.zeros((2, len(self._event_of)), np.int64)
        for group in self._groups:
            rows = self._rows_of(group)
            entry[rows], entries[rows] = group.entry_numbers
        return entry, entries

    def _array(self, name: str, values: Any) -> pa.Array:
        try:
            return array_of(values, self._types[name])
        except OverflowError:
            raise UnusualEvent(f"an event with a {name} that is too large") from None

    def _json(self) -> Iterator[bytes]:
        if not self._entries:
            return (orjson.dumps(json_object(event)) for event in self._events)
        return chain.from_iterable(map(entry_texts, self._events, self._counts.tolist()))

    def _payloads(self) -> tuple[bytes, Integers, Flags]:
        """Return the payloads of all rows, their offsets, and which rows have one."""
        lengths = np.zeros(len(self._event_of), np.int64)
        valid = np.zeros(len(self._event_of), np.bool_)
        pieces: list[memoryview | bytes] = [b""] * len(self._events)
        for group in self._groups:
            if group.kind in WITH_BLOCKS:
                rows = self._rows_of(group)
                areas, lengths[rows] = group.payloads(whole=not self._entries)
                valid[rows] = True
                for number, area in zip(group.numbers.tolist(), areas, strict=True):
                    pieces[number] = area
        return b"".join(pieces), np.concatenate(([0], np.cumsum(lengths))), valid


def _integers(values: Any) -> Integers:
    return np.array([*values], np.int64)


def sparse_rows(columns: Columns, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows given by their few columns that are not null."""
    types = GRAINS[columns.rows]
    arrays = [array_of([row.get(name) for row in rows], types[name]) for name in columns.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns.rows, columns.names))
