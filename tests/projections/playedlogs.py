"""Logs of random nodes, and a source that reads them from memory."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Iterator
from copy import copy
from pathlib import Path
from typing import TypeAlias, TypeVar, cast

from harness.salvages import salvaged
from hypothesis import strategies as st
from randomnode import NAMES, STEPS, Node
from specification import snapshot

from eventstore.format.positions import MAX_INDEX, Position, index_of, position, sequence_of
from eventstore.format.records import Record, decode_record
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_source import LogSource, RecordsRead
from projections.past.replay import fold, head
from projections.state.node_state import NodeState
from projections.state.session import SessionState

_Played = TypeVar("_Played", bound=Node)


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


def played(
    steps: list[tuple[str, str, int]],
    max_record: int,
    kind: type[_Played] = Node,  # type: ignore[assignment]
    second: int = 2,
) -> _Played:
    """A node that two clients connect to, the second one with a number of its own."""
    node = kind(max_record)
    for step, name, number in [("connect", "ann", 1), ("connect", "bob", second), *steps]:
        getattr(node, step)(name, number)
    node.finish()
    return node


def places(source: FakeSource) -> Iterator[Position]:
    """Every record, and every event in it."""
    for sequence in range(source.begin, source.last + 1):
        for index, _ in source.record(sequence).events():
            yield position(sequence, index)
        yield position(sequence, MAX_INDEX)


def fold_to(source: FakeSource, at: Position, only: str) -> NodeState:
    """The fold of the broker of one session as of a position, of the whole log up to there."""
    node = NodeState(source.begin)
    for sequence in range(source.begin, min(sequence_of(at), source.last) + 1):
        record = source.record(sequence)
        if sequence == sequence_of(at) and index_of(at) != MAX_INDEX:
            record = head(record, index_of(at))
        fold(node, record, only)
    return node


def same(state: SessionState | None, expected: SessionState | None) -> bool:
    """Whether two states are equal; None: there is no session."""
    if state is None or expected is None:
        return state is expected
    return bool(snapshot(state) == snapshot(expected))


Steps: TypeAlias = list[tuple[str, str, int]]
CHECKPOINT: Steps = [("end_turn", "ann", 1), *[("checkpoint", "ann", 0)] * 2, ("end_turn", "a", 1)]
MANY = st.lists(
    st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES), st.integers(0, 30)), max_size=60
)
