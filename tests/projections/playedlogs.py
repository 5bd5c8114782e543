"""Logs of random nodes, and a source that reads them from memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable
from copy import copy
from pathlib import Path
from typing import cast

from harness.salvages import salvaged
from hypothesis import strategies as st
from randomnode import NAMES, STEPS, Node

from eventstore.format.records import Record, decode_record
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_source import LogSource, RecordsRead


class FakeSource:
    """A log in memory, from `first` on; counts the records that are requested by number."""

    key = None

    def __init__(self, node: Node, first: int = 1) -> None:
        self._data = {one.sequence: one.data for one in node.log.records if one.sequence >= first}
        self.seen = RecordsRead()
        self.first = self.begin = first
        self.last = max(self._data, default=0)
        self.asked: list[int] = []
        self.index = LogIndex((), first)

    def salvaged(self, folder: Path, *lost: int) -> FakeSource:
        """Return what a salvage makes of the log when some records are lost."""
        other = copy(self)
        other._data = salvaged(folder, self._data, lost)
        other.last = max(other._data)
        other.seen = RecordsRead()
        return other

    def record(self, sequence: int) -> Record:
        return decode_record(sequence, self._data[sequence])

    async def records(self, first: int, last: int) -> AsyncIterator[Record]:
        for sequence in range(first, last + 1):
            record = self.record(sequence)
            self.seen.take(first, record)
            yield record

    def require_whole(self) -> None:
        """Do nothing: it begins where it may."""

    def indexed(self, index: LogIndex | None) -> FakeSource:
        other = copy(self)
        other.index = index or LogIndex((), self.begin)
        return other

    async def some(self, sequences: Iterable[int]) -> list[Record]:
        wanted = list(sequences)
        self.asked += wanted
        return [self.record(sequence) for sequence in wanted]


def as_source(fake: FakeSource) -> LogSource:
    return cast("LogSource", fake)


def played(steps: list[tuple[str, str, int]], max_record: int) -> Node:
    node = Node(max_record)
    for step, name, number in [("connect", "ann", 1), ("connect", "bob", 2), *steps]:
        getattr(node, step)(name, number)
    node.finish()
    return node


MANY = st.lists(
    st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES), st.integers(0, 30)), max_size=60
)
