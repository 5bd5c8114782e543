"""Records as Arrow batches of entries or events: pure Python and Arrow, without Spark.

Events are read by the broker's own parser. Those of a type are collected, each column is built once
for each type that has it, and its cells are brought into the order of the log by one ``take``.
"""

from __future__ import annotations

from collections import defaultdict
from itertools import chain, islice, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import orjson
import pyarrow as pa

from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import UnreadableEvent, entries
from eventstore.format.positions import INDEX_BITS, MAX_INDEX
from spark.tables.arrays import array_of, indices, texts_of
from spark.tables.arrow_types import GRAINS, schema_of
from spark.tables.entry_columns import MAKERS, TEXTS, Cells
from spark.tables.entry_objects import entry_objects
from spark.tables.event_groups import (
    MESSAGES,
    WITH_BLOCKS,
    EventGroup,
    UnusualEvent,
    numbers_within,
    sums_before,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from eventstore.format.event_parsing import Event
    from eventstore.format.records import Record
    from spark.tables.arrays import Integers
    from spark.tables.columns import Columns
    from spark.tables.row_filter import RowFilter

MAX_ROWS: Final = 1 << 15
"""Maximum rows of an Arrow batch."""
_BYTES: Final = 32 << 20
"""Maximum bytes of text repeated by the rows of a batch: an event about 30 000 messages is short,
but each of its rows repeats its session and its filter, which may have 64 KiB."""


class ParsedRecord(NamedTuple):
    """A record and its wanted events."""

    record: Record
    events: Sequence[Event]
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

    def __init__(self, columns: Columns, wanted: RowFilter) -> None:
        self._columns = columns
        self._wanted = wanted

    def parse(self, record: Record) -> ParsedRecord:
        """Return a record with its wanted events.

        Raises UnreadableEvent for an invalid event, and UnknownEvent for one of a later foldmq.
        """
        try:
            pairs = [*record.events()]
            stop = pairs[-1][0] + entries(pairs[-1][1]) if pairs else 0
        except IndexError:
            what = f"record {record.sequence} holds a run that is none"
            raise UnreadableEvent(what) from None
        firsts = [first for first, _ in pairs]
        events = [event for _, event in pairs]
        counts = [end - begin for begin, end in pairwise([*firsts, stop])]
        if counts and (min(counts) < 0 or stop > MAX_INDEX + 1):
            what = f"record {record.sequence} holds an event with a count that cannot be"
            raise UnreadableEvent(what)
        if self._wanted.selects:
            kept = [at for at, event in enumerate(events) if self._wanted.has(event)]
            events = [events[at] for at in kept]
            firsts = [firsts[at] for at in kept]
            counts = [counts[at] for at in kept]
        return ParsedRecord(record, events, firsts, counts)

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

    def __init__(self, parsed: Sequence[ParsedRecord], columns: Columns, wanted: RowFilter) -> None:
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
        self._low = int(np.searchsorted(self._positions, wanted.first))
        last = wanted.last
        self._high = len(self._positions)
        if last is not None:
            self._high = int(np.searchsorted(self._positions, last, "right"))
        if "payload" in columns.names:
            for group in self._groups:
                if group.kind in WITH_BLOCKS:
                    group.check_areas()
        if "json" in columns.names and self._entries:
            for group in self._groups:
                group.check_columns()
        self._cells = {name: self._cells_of(name) for name in columns.names}

    @property
    def _entries(self) -> bool:
        return self._columns.rows == "entries"

    def _grouped(self) -> list[EventGroup]:
        """Return the events of each type."""
        by_type: dict[str, list[int]] = defaultdict(list)
        for number, event in enumerate(self._events):
            by_type[event.e].append(number)
        groups: list[EventGroup] = []
        for kind, numbers in by_type.items():
            places = np.array(numbers)
            events = [self._events[at] for at in numbers]
            records = [self._records[at] for at in self._owners[places].tolist()]
            groups.append(EventGroup(kind, places, events, self._counts[places], records))
        return groups

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield the rows in batches of limited size."""
        schema = schema_of(self._columns.rows, self._columns.names)
        texts = islice(self._json(), self._low, None)
        payloads = islice(self._payloads(), self._low, None)
        for start, stop in self._cut():
            size = stop - start
            arrays: list[pa.Array] = []
            for name in self._columns.names:
                kind, cells = self._types[name], self._cells[name]
                if name == "json":
                    arrays.append(texts_of([*islice(texts, size)]))
                elif name == "payload":
                    arrays.append(array_of([*islice(payloads, size)], kind))
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
            for name in TEXTS[group.kind]:
                widths[group.numbers] += [len(text or "") for text in group.values(name)]
            if group.kind in MESSAGES:
                widths[group.numbers] += [
                    max(map(len, event.topics), default=0) for event in group.events
                ]
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
        records, record_of = self._records, self._record_of
        if name == "node":
            return Cells([record.node for record in records], record_of)
        if name == "seq":
            return Cells(_integers(record.sequence for record in records), record_of)
        if name == "time_ms":
            return Cells(_integers(record.time_ms for record in records), record_of)
        if name == "time":
            return Cells(_integers(record.time_ms * 1000 for record in records), record_of)
        if name == "steady_ms":
            return Cells(_integers(record.steady_ms for record in records), record_of)
        if name == "part" and not self._entries:
            return Cells(_integers(record.part for record in records), record_of)
        if name == "position":
            return Cells(self._positions)
        if name == "index":
            return Cells(self._index)
        if name == "entry":
            return Cells(self._entry)
        if name == "entries":
            return Cells(self._counts, self._event_of)
        if name in ("type", "version"):
            codes = np.zeros(len(self._events), np.int64)
            for code, group in enumerate(self._groups):
                codes[group.numbers] = code
            heads = [group.events[0] for group in self._groups]
            values = [head.e if name == "type" else head.v for head in heads]
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
            rows = self._first_row[group.numbers]
            if self._entries:
                rows = rows[group.event_of] + group.entry
            else:  # a value for each event
                pick = np.arange(len(group.events))
            if pick is None:
                where[rows] = np.arange(base, base + group.total)
            else:
                where[rows] = np.where(pick < 0, -1, pick + base)
            arrays.append(self._array(name, values))
            base += len(values)
        return (pa.concat_arrays(arrays), where) if base else None

    def _array(self, name: str, values: Any) -> pa.Array:
        try:
            return array_of(values, self._types[name])
        except OverflowError:
            raise UnusualEvent(f"an event with a {name} that is too large") from None

    def _json(self) -> Iterator[bytes]:
        if not self._entries:
            return (orjson.dumps(json_object(event)) for event in self._events)
        return chain.from_iterable(map(_json_of_entries, self._events, self._counts.tolist()))

    def _payloads(self) -> Iterator[bytes | None]:
        for event, count, owner in zip(
            self._events, self._counts.tolist(), self._owners.tolist(), strict=True
        ):
            record: Any = self._records[owner]
            if event.e not in WITH_BLOCKS:
                yield from (None,) * (count if self._entries else 1)
                continue
            if event.e in MESSAGES:
                payloads = record.payloads(event)
            else:
                payloads = [bytes(record.payload[event.at : event.at + event.size])]  # type: ignore[union-attr]
            if self._entries:
                yield from payloads
            else:
                apart = getattr(event, "blocks_at", ())
                blocks = () if apart else record.distinct_blocks(event)
                yield b"".join((*blocks, *payloads))


def _json_of_entries(event: Event, count: int) -> Iterable[bytes]:
    if count == 1:
        return (orjson.dumps(json_object(event)),)
    return map(orjson.dumps, entry_objects(event, count))


def _integers(values: Any) -> Integers:
    return np.array([*values], np.int64)


def sparse_rows(columns: Columns, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows given by their few columns that are not null."""
    known = GRAINS[columns.rows]
    arrays = [array_of([row.get(name) for row in rows], known[name]) for name in columns.names]
    return pa.RecordBatch.from_arrays(arrays, schema=schema_of(columns.rows, columns.names))
