"""The layout of a batch of records: the positions of events and entries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np
import pyarrow as pa

from eventstore.format.event_parsing import VERSIONS
from eventstore.format.positions import INDEX_BITS
from spark.tables.arrays import nulled, of_numbers, of_texts
from spark.tables.arrow_types import ENTRIES
from spark.tables.event_fields import TURN_SHAPES
from spark.tables.event_groups import EventGroup
from spark.tables.integer_columns import Integers, UnusualEvent, integers, sums_before
from spark.tables.json_scan import JsonScan
from spark.tables.turn_groups import TurnGroup, groups_of_turns

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from eventstore.format.positions import Position
    from eventstore.format.records import Record
    from spark.tables.row_filter import RowFilter

_KINDS: Final = (*VERSIONS, *TURN_SHAPES)
KIND_NAMES: Final = of_texts(kind.encode() for kind in VERSIONS)
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

    group: EventGroup | TurnGroup
    events: Integers
    """The number of each event in the batch."""
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


def _groups(
    scan: JsonScan, codes: NDArray[np.int8], *, turns: bool
) -> Iterator[EventGroup | TurnGroup]:
    """Yield the events of each type; with ``turns``, also those for which others stand."""
    order = np.argsort(codes, kind="stable")
    start = 0
    for code, size in enumerate(np.bincount(codes, minlength=len(_KINDS)).tolist()):
        if not size:
            continue
        kind, numbers = _KINDS[code], order[start : start + size]
        if kind in VERSIONS:
            yield EventGroup(kind, scan, numbers)
        elif turns:
            yield from groups_of_turns(kind, scan, numbers)
        else:
            raise UnusualEvent(f"a {kind} that does not fit together")
        start += size


class BatchLayout:
    """The rows of the entries of the events of some records.

    Events are numbered in the order of the log, as events of single sessions. With ``turns``, the
    text of the batch is that of the log, and an event of several sessions is one event there;
    without, the numbers are those in the text.
    """

    def __init__(
        self, records: Sequence[Record], wanted: RowFilter, *, turns: bool = False
    ) -> None:
        self.scan = scan = JsonScan(records, turns=turns)
        self.record_of = np.repeat(np.arange(len(records)), scan.lengths)
        """For each event, the number of its record."""
        self.codes = _codes(scan)
        """For each event, the number of its type."""
        groups = list(_groups(scan, self.codes, turns=turns))
        begins = self._spread(groups)
        counts = np.zeros(len(self.codes), np.int64)
        for group in groups:
            events = group.places(begins)
            counts[events] = group.counts
            if isinstance(group, TurnGroup):
                self.codes[events] = _KINDS.index(group.kind)
        so_far = sums_before(counts)
        firsts = np.searchsorted(self.record_of, np.arange(len(records)))
        base = so_far[np.minimum(firsts, max(len(counts) - 1, 0))] if len(counts) else firsts
        self.index_of = so_far - base[self.record_of]
        """For each event, the index of its first entry."""
        self.times = integers([record.time_ms for record in records])
        self.steady_times = integers([record.steady_ms for record in records])
        """For each record, its time in milliseconds."""
        self._nodes = [record.node for record in records]
        self.sequences = np.array([record.sequence for record in records], np.int64)
        chosen = [found for group in groups if (found := wanted.of(group)) is not None]
        places = [group.places(begins) for group in chosen]
        self.counts = np.zeros(len(counts), np.int64)
        for group, events in zip(chosen, places, strict=True):
            self.counts[events] = group.counts
        self.total = int(self.counts.sum())
        self.first_row = sums_before(self.counts)
        self.made = [
            PlacedEvents(group, events, self.first_row[events][group.event_of] + group.entry)
            for group, events in zip(chosen, places, strict=True)
        ]
        """The events of each type that match the filter."""
        self.groups = [group for group in chosen if isinstance(group, EventGroup)]
        """Those that were written as events of single sessions: without ``turns``, all."""
        self.event_of = np.repeat(np.arange(len(counts)), self.counts)
        """For each row, the number of its event."""
        self.plain = len(self.groups) == len(groups) and bool((self.counts == 1).all())
        """Whether the rows are the events as written: all match, and each has one entry."""

    def _spread(self, groups: Sequence[EventGroup | TurnGroup]) -> Integers:
        """Make room for the events for which others stand.

        Returns, for each event in the text, the number of the first one.
        """
        spread = np.ones(len(self.scan), np.int64)
        for group in groups:
            if isinstance(group, TurnGroup):
                spread[group.written] = group.spread
        if int(spread.sum()) > len(spread):
            self.record_of = np.repeat(self.record_of, spread)
            self.codes = np.repeat(self.codes, spread)
        return sums_before(spread)

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
