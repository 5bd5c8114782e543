"""The layout of a batch of records: the positions of events and entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from eventstore.format import INDEX_BITS, VERSIONS
from spark.columnar.arrays import nulled, of_numbers, of_texts
from spark.columnar.event_groups import EventGroup
from spark.columnar.integer_columns import Integers, UnusualEvent, integers, sums_before
from spark.columnar.json_scan import JsonScan
from spark.schema import ENTRIES

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from eventstore.format import Position, Record
    from spark.columnar.row_filter import RowFilter

_KINDS: Final = tuple(VERSIONS)
KIND_NAMES: Final = of_texts(kind.encode() for kind in _KINDS)
"""The name of each type of event, by its number in the layout."""
KIND_VERSIONS: Final = of_numbers(np.array([*VERSIONS.values()], np.int32), ENTRIES["version"])
"""The current version of each type."""


def _mark(words: Integers, lengths: Integers) -> Integers:
    """Return marks that distinguish names by their last eight bytes and their lengths."""
    return words ^ lengths << 58


def _mark_of(kind: str) -> int:
    word = f'"e":"{kind}'.encode()[-8:]
    return int(_mark(np.frombuffer(word, "<i8"), np.array([len(kind)]))[0])


_MARKED: Final = np.array(
    sorted(range(len(_KINDS)), key=lambda code: _mark_of(_KINDS[code])), np.int8
)
"""The number of each type, in the order of their marks."""
_MARKS: Final = np.array([_mark_of(_KINDS[code]) for code in _MARKED.tolist()])


class PlacedEvents(NamedTuple):
    """Events of one type, and the rows of their entries."""

    group: EventGroup
    rows: Integers
    """The row of each entry."""


def _codes(scan: JsonScan) -> NDArray[np.int8]:
    """Return the number of each event's type; raise UnusualEvent for an unknown one."""
    last = scan.first_key + scan.key_count - 2
    if (scan.key_count < 2).any() or not scan.has(scan.key_at[last], b'"e":"').all():
        raise UnusualEvent("an event that does not end with its type and version")
    names = scan.keys[last] + 1
    marks = _mark(scan.words(scan.closes[names] - 8), scan.closes[names] - scan.opens[names] - 1)
    at = np.minimum(np.searchsorted(_MARKS, marks), len(_MARKS) - 1)
    if not np.array_equal(_MARKS[at], marks):
        raise UnusualEvent("an event of an unknown type")
    return _MARKED[at]


def _groups(scan: JsonScan, codes: NDArray[np.int8]) -> Iterator[EventGroup]:
    """Yield the events of each type."""
    order = np.argsort(codes, kind="stable")
    start = 0
    for code, size in enumerate(np.bincount(codes, minlength=len(_KINDS)).tolist()):
        if size:
            yield EventGroup(_KINDS[code], scan, order[start : start + size])
            start += size


class BatchLayout:
    """The rows of the entries of the events of some records."""

    def __init__(self, records: Sequence[Record], wanted: RowFilter) -> None:
        self.scan = scan = JsonScan(records)
        self.record_of = np.repeat(np.arange(len(records)), scan.lengths)
        """For each event, the number of its record."""
        self.codes = _codes(scan)
        """For each event, the number of its type."""
        groups = list(_groups(scan, self.codes))
        counts = np.zeros(len(scan), np.int64)
        for group in groups:
            counts[group.numbers] = group.counts
        so_far = sums_before(counts)
        firsts = sums_before(scan.lengths)
        base = so_far[np.minimum(firsts, max(len(scan) - 1, 0))] if len(scan) else firsts
        self.index_of = so_far - base[self.record_of]
        """For each event, the index of its first entry."""
        self.times = integers([record.time_ms for record in records])
        """For each record, its time in milliseconds."""
        self._nodes = [record.node for record in records]
        self.sequences = np.array([record.sequence for record in records], np.int64)
        self.groups = [found for group in groups if (found := wanted.of(group)) is not None]
        """The events of each type that match the filter."""
        self.counts = np.zeros(len(scan), np.int64)
        for group in self.groups:
            self.counts[group.numbers] = group.counts
        self.total = int(self.counts.sum())
        self.first_row = sums_before(self.counts)
        self.made = [
            PlacedEvents(group, self.first_row[group.numbers][group.event_of] + group.entry)
            for group in self.groups
        ]
        self.event_of = np.repeat(np.arange(len(scan)), self.counts)
        """For each row, the number of its event."""
        self.plain = bool((self.counts == 1).all())
        """Whether the rows are the events: all match, and each has one entry."""

    def nodes(self, records: Integers) -> pa.Array:
        """Return the node that wrote each of some records."""
        if len(set(self._nodes)) == 1:
            return pa.repeat(of_texts([self._nodes[0].encode()])[0], len(records))
        return of_texts(node.encode() for node in self._nodes).take(of_numbers(records, pa.int64()))

    def sessions(self, events: Integers) -> pa.Array:
        """Return the session of each of some events in order; null for events without a session."""
        begins, ends = np.zeros((2, len(self.scan)), np.int64)
        valid = np.zeros(len(self.scan), np.bool_)
        for group in self.groups:
            numbers = group.numbers
            if group.has("session"):
                begins[numbers], ends[numbers], known = group.string_span("session")
                valid[numbers] = True if known is None else known
            else:
                begins[numbers] = ends[numbers] = self.scan.begins[numbers]
        found = self.scan.strings(begins[events], ends[events])
        return nulled(found, valid[events])

    def between(self, first: Position, last: Position | None) -> tuple[int, int]:
        """Return the range of rows between two positions, both included."""
        if not len(self.sequences):
            return 0, 0
        low, high = 0, self.total
        if first > int(self.sequences[0]) << INDEX_BITS:
            low = int(np.searchsorted(self.positions(0, self.total), first))
        if last is not None and last < (int(self.sequences[-1]) + 1) << INDEX_BITS:
            high = int(np.searchsorted(self.positions(0, self.total), last, "right"))
        return low, high

    def positions(self, start: int, stop: int) -> Integers:
        """Return the positions of a range of rows."""
        events = self.event_of[start:stop]
        index = self.index_of[events] + np.arange(start, stop) - self.first_row[events]
        return self.sequences[self.record_of[events]] << INDEX_BITS | index
