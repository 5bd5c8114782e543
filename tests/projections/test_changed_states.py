"""The changes between two records, found with the index, are those of two folds of the log."""

import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from indexedlogs import IndexedSource, as_log, build, use
from playedlogs import CHECKPOINT, MANY, Steps, played
from randomnode import Node

from eventstore.errors import CorruptLog, CutOff
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import CheckpointBegun
from eventstore.format.positions import INDEX_BITS, Position
from eventstore.reading import keys
from eventstore.reading.segment import BadIndex
from projections.past.changed_states import ChangedStates
from projections.past.replay import Origins, fold
from projections.state.node_state import NodeState
from projections.views.differences import StateFacts, state_facts


@pytest.fixture(autouse=True)
def _small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep many states, and compare few sessions at a time."""
    monkeypatch.setattr(keys, "_RECORDS_BETWEEN", 3)
    monkeypatch.setattr("projections.past.changed_states._SESSIONS_AT_ONCE", 2)


class AllOrigins(Origins):
    """They forget nothing: random nodes begin checkpoints in the middle of a record, too."""

    def _follow(self, event: Event, at: Position, state: NodeState) -> None:
        if not isinstance(event, CheckpointBegun):
            super()._follow(event, at, state)


def folded(source: IndexedSource, last: int) -> StateFacts | None:
    """The facts after a record; None: so close to the cut of the log they are not known."""
    node, origins = NodeState(source.begin), AllOrigins()
    for sequence in range(source.begin, last + 1):
        record = source.record(sequence)
        origins.take(record, node)
        fold(node, record)
    return None if node.partial else state_facts(node, None, origins.of)


async def no_pause() -> None:
    pass


async def compare(source: IndexedSource, before: int, after: int) -> bool:
    """Compare the changes between two records; return whether the index knows them."""
    changes = ChangedStates(as_log(source), before, after, no_pause)
    try:
        names = await changes.names()
    except (BadIndex, CutOff, CorruptLog):
        assert folded(source, before) is None or not source.index.empty
        return False
    found = [one async for one in changes.sessions(names)]
    old, new = folded(source, before), folded(source, after)
    assert old is not None
    assert new is not None
    expected = {
        name: (old.sessions.get(name), new.sessions.get(name))
        for name in old.sessions.keys() | new.sessions.keys()
        if old.sessions.get(name) != new.sessions.get(name)
    }
    assert {one.name: (one.old, one.new) for one in found} == expected
    retained = await changes.retained()
    for topic in old.retained.keys() | new.retained.keys():
        if old.retained.get(topic) != new.retained.get(topic):
            assert topic in retained
    for topic, size in retained.items():
        is_there = new.retained.get(topic)
        assert size == (None if is_there is None else is_there[1])
    return True


async def compare_all(source: IndexedSource) -> int:
    known = 0
    for before in range(source.begin, source.last + 1):
        for after in {before, min(before + 1, source.last), (before + source.last) // 2} | {
            source.last
        }:
            known += await compare(source, before, after)
    return known


def indexed(node: Node, place: Path, first: int, step: int, share: float) -> IndexedSource:
    source, whole = IndexedSource(node, first), IndexedSource(node)
    return use(source, build(whole, place, max(1, round(share * whole.last)), step))


RANDOM = {
    "steps": MANY,
    "max_record": st.sampled_from([600, 1 << 20]),
    "step": st.integers(1, 6),
    "share": st.sampled_from([0.3, 0.8, 1.0]),
}


@given(**RANDOM)
async def test_changes_are_those_of_two_folds(
    steps: Steps, max_record: int, step: int, share: float
) -> None:
    with tempfile.TemporaryDirectory() as place:
        source = indexed(played(steps, max_record), Path(place), 1, step, share)
        known = await compare_all(source)
        assert known > 0 or source.index.empty


@pytest.mark.slow
@given(**RANDOM, more=MANY)
async def test_changes_of_a_log_that_was_cut(
    steps: Steps, max_record: int, step: int, share: float, more: Steps
) -> None:
    node = played([*steps, *CHECKPOINT, *more], max_record)
    for checkpoint in node.live.checkpoints[:1]:
        with tempfile.TemporaryDirectory() as place:
            first = checkpoint.begun >> INDEX_BITS
            await compare_all(indexed(node, Path(place), first, step, share))
