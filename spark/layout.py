"""Where the events and entries of a batch of records stand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from eventstore.events import VERSIONS
from eventstore.positions import INDEX_BITS
from spark.columns import ENTRIES
from spark.groups import Group
from spark.runs import Integers, before, integers
from spark.singles import json_array
from spark.structs import STRUCTS, Text, events_of, lines_of, texts_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from eventstore.positions import Position
    from eventstore.records import Record
    from spark.wanted import Wanted

_KINDS: Final = tuple(VERSIONS)
_NEWLINE: Final = ord("\n")
_CODES: Final = {STRUCTS[kind]: code for code, kind in enumerate(_KINDS)}
KIND_NAMES: Final = pa.array(_KINDS, pa.string())
"""The name of each type of event, by the number that the layout gives it."""
KIND_VERSIONS: Final = pa.array(list(VERSIONS.values()), ENTRIES["version"])
"""Today's version of each."""


class Made(NamedTuple):
    """Events of one type, and where their entries go."""

    group: Group
    rows: Integers
    """The row of each of its entries."""


def _groups(events: list[Any], codes: NDArray[np.int8]) -> Iterator[Group]:
    """Yield the events of each type."""
    order = np.argsort(codes, kind="stable")
    ordered = [events[number] for number in order.tolist()]
    start = 0
    for code, size in enumerate(np.bincount(codes, minlength=len(_KINDS)).tolist()):
        if size:
            yield Group(_KINDS[code], ordered[start : start + size], order[start : start + size])
            start += size


class Layout:
    """Where the entries of the events of some records stand."""

    def __init__(self, records: Sequence[Record], wanted: Wanted) -> None:
        self._records = records
        self._texts: list[Text] | None = None
        self._json: pa.Array | None = None
        self.events = events = list[Any]()
        lengths = np.zeros(len(records), np.int64)
        for number, record in enumerate(records):
            some = events_of(record)
            lengths[number] = len(some)
            events += some
        self._lengths = lengths.tolist()
        self.record_of = np.repeat(np.arange(len(records)), lengths)
        """For each event, the number of its record."""
        self.codes = np.fromiter(map(_CODES.__getitem__, map(type, events)), np.int8, len(events))
        """For each event, the number of its type."""
        groups = list(_groups(events, self.codes))
        counts = np.zeros(len(events), np.int64)
        for group in groups:
            counts[group.numbers] = group.counts
        so_far = before(counts)
        firsts = before(lengths)
        base = so_far[np.minimum(firsts, max(len(events) - 1, 0))] if len(events) else firsts
        self.index_of = so_far - base[self.record_of]
        """For each event, the index of its first entry."""
        self.times = integers([record.time_ms for record in records])
        """For each record, its time in milliseconds."""
        self._nodes = [record.node for record in records]
        self.sequences = np.array([record.sequence for record in records], np.int64)
        self.groups = [found for group in groups if (found := wanted.of(group)) is not None]
        """The events of each type that are wanted."""
        self.counts = np.zeros(len(events), np.int64)
        for group in self.groups:
            self.counts[group.numbers] = group.counts
        self.total = int(self.counts.sum())
        self.first_row = before(self.counts)
        self.made = [
            Made(group, self.first_row[group.numbers][group.event_of] + group.entry)
            for group in self.groups
        ]
        self.event_of = np.repeat(np.arange(len(events)), self.counts)
        """For each row, the number of its event."""
        self.plain = bool((self.counts == 1).all())
        """Whether the rows are the events: all are wanted, and each has one entry."""

    def texts(self) -> list[Text]:
        """Return the JSON of each event."""
        if self._texts is None:
            self._texts = texts = list[Text]()
            for record, length in zip(self._records, self._lengths, strict=True):
                texts += texts_of(record, length)
        return self._texts

    def json(self) -> pa.Array:
        """Return the JSON of each event as an array of strings."""
        if self._json is None:
            self._json = self._joined()
        return self._json

    def _joined(self) -> pa.Array:
        some: list[bytes] = []
        for record, length in zip(self._records, self._lengths, strict=True):
            if length:
                lines = lines_of(record, length)
                if lines is None:
                    return json_array(self.texts())
                some.append(lines)
        lines = b"\n".join(some)
        ends = np.flatnonzero(np.frombuffer(lines, np.uint8) == _NEWLINE)
        text = lines.replace(b"\n", b"")
        offsets = np.empty(len(self.events) + 1, np.int32)
        offsets[0], offsets[1:-1], offsets[-1] = 0, ends - np.arange(len(ends)), len(text)
        buffers = [None, pa.py_buffer(offsets), pa.py_buffer(text)]
        return pa.Array.from_buffers(pa.string(), len(self.events), buffers)

    def nodes(self, records: Integers) -> pa.Array:
        """Return the name of the node that wrote each of some records."""
        if len(set(self._nodes)) == 1:
            return pa.repeat(pa.scalar(self._nodes[0], pa.string()), len(records))
        return pa.array(self._nodes, pa.string()).take(pa.array(records))

    def between(self, first: Position, last: Position | None) -> tuple[int, int]:
        """Return which rows stand between two positions, both included."""
        if not len(self.sequences):
            return 0, 0
        low, high = 0, self.total
        if first > int(self.sequences[0]) << INDEX_BITS:
            low = int(np.searchsorted(self.positions(0, self.total), first))
        if last is not None and last < (int(self.sequences[-1]) + 1) << INDEX_BITS:
            high = int(np.searchsorted(self.positions(0, self.total), last, "right"))
        return low, high

    def positions(self, start: int, stop: int) -> Integers:
        """Return the positions of the rows from one to before another."""
        events = self.event_of[start:stop]
        index = self.index_of[events] + np.arange(start, stop) - self.first_row[events]
        return self.sequences[self.record_of[events]] << INDEX_BITS | index
