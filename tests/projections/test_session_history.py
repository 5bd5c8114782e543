"""The states of the web page's slider equal those of a full fold, at every position."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from playedlogs import (
    CHECKPOINT,
    MANY,
    FakeSource,
    as_source,
    fold_to,
    places,
    played,
    same,
)
from randomnode import NAMES, Node

from eventstore.format.positions import (
    INDEX_BITS,
    MAX_INDEX,
    Position,
    index_of,
    position,
    sequence_of,
)
from eventstore.reading.log_points import LogPoint
from projections.past import session_history as module
from projections.past.replay import Replay
from projections.past.session_history import SessionHistory
from projections.state.node_state import NodeState
from projections.state.session import SessionState


async def no_pause(_sequence: int) -> None:
    """Continues at once."""


async def grown(fake: FakeSource, name: str, *stops: int) -> SessionHistory:
    history = SessionHistory(name, fake.begin, asyncio.Lock())
    for stop in (*stops, fake.last):
        await history.grow(as_source(fake), stop, no_pause)
    return history


def full_fold(fake: FakeSource, name: str, at: Position) -> SessionState | None:
    """What `foldmq replay --at` folds."""
    return fold_to(fake, at, name).sessions.peek(name)


async def replayed(fake: FakeSource, name: str, at: Position) -> NodeState:
    replay = Replay(as_source(fake), sequence_of(at), name)
    await replay.to(LogPoint(sequence_of(at), index_of(at)))
    return replay.state


@given(steps=MANY, max_record=st.sampled_from([600, 1 << 20]), name=st.sampled_from(NAMES[:2]))
async def test_a_state_at_any_position_is_that_of_a_full_fold(
    steps: list[tuple[str, str, int]], max_record: int, name: str
) -> None:
    fake = FakeSource(played(steps, max_record))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FIRST_INTERVAL", 3)
        patch.setattr(module, "MAX_STATES", 4)
        history = await grown(fake, name, fake.last // 2)

        for at in places(fake):
            seen = await history.at(as_source(fake), at)
            assert same(seen.state, full_fold(fake, name, at)), at
            if seen.earlier is not None:
                assert same(seen.before, full_fold(fake, name, seen.earlier)), at
            assert seen.later is None or seen.later > at


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=MANY, name=st.sampled_from(NAMES[:2]), lost=st.lists(st.integers(2, 40), max_size=3))
async def test_behind_lost_records_it_is_that_of_a_full_fold(
    tmp_path: Path, steps: list[tuple[str, str, int]], name: str, lost: list[int]
) -> None:
    """Also behind a checkpoint that repeats the state, and where the hole explains an event."""
    whole = FakeSource(played([*steps, *CHECKPOINT, *steps[:20]], 600))
    gone = sorted({2 + one % max(1, whole.last - 2) for one in lost} or {2})
    fake = whole.salvaged(tmp_path, *gone)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "_FIRST_INTERVAL", 3)
        patch.setattr(module, "MAX_STATES", 4)
        history = await grown(fake, name, fake.last // 2)

        states = {at: await replayed(fake, name, at) for at in places(fake) if at >= history.begin}

        for at in states:
            seen = await history.at(as_source(fake), at)
            node = states[at]
            expected = node.sessions.peek(name)
            assert same(seen.state, expected), at
            unsure = node.unsure_state() if expected is None else node.unsure_session(name)
            assert seen.unsure == unsure, at
            if seen.earlier is not None:
                assert same(seen.before, full_fold(fake, name, seen.earlier)), at


@given(steps=MANY, name=st.sampled_from(NAMES[:2]))
async def test_going_back_and_forth_meets_every_event(
    steps: list[tuple[str, str, int]], name: str
) -> None:
    fake = FakeSource(played(steps, 600))
    history = await grown(fake, name)
    effective = sorted({history.position_of(number) for number in range(len(history))})

    at: Position | None = position(fake.last, MAX_INDEX)
    back = []
    while at is not None:
        seen = await history.at(as_source(fake), at)
        back.append(at)
        at = seen.earlier
    assert back[:0:-1] == effective[:-1]
    at, forth = 0, []
    while at is not None:
        at = (await history.at(as_source(fake), at)).later
        forth.append(at)
    assert forth == [*effective, None]


@given(steps=MANY, name=st.sampled_from(NAMES[:2]))
async def test_a_log_that_begins_with_a_checkpoint_gives_the_same_history(
    steps: list[tuple[str, str, int]], name: str
) -> None:
    node = played([*steps, *CHECKPOINT, *steps], 600)
    for one in node.live.checkpoints[:1]:
        whole, cut = FakeSource(node), FakeSource(node, one.begun >> INDEX_BITS)
        history = await grown(cut, name)
        assert not history.partial

        async def compare(whole: FakeSource, cut: FakeSource, history: SessionHistory) -> None:
            for at in places(cut):
                if at >= history.begin:
                    seen = await history.at(as_source(cut), at)
                    assert same(seen.state, full_fold(whole, name, at)), at

        await compare(whole, cut, history)


async def test_of_very_many_events_the_latest_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_EVENTS", 40)
    monkeypatch.setattr(module, "_FIRST_INTERVAL", 4)
    node = Node(1 << 20)
    node.connect("ann", 1)
    for number in range(100):
        node.subscribe("ann", 1 + number % 3)
        node.unsubscribe("ann", number)
        node.end_turn("ann", 1)
    node.finish()
    fake = FakeSource(node)
    history = await grown(fake, "ann")
    assert history.forgotten > 0
    assert 20 <= len(history) <= 40

    for at in places(fake):
        if at >= history.begin:
            seen = await history.at(as_source(fake), at)
            assert same(seen.state, full_fold(fake, "ann", at)), at


async def test_states_that_are_kept_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_FIRST_INTERVAL", 2)
    monkeypatch.setattr(module, "MAX_STATES", 8)
    node = Node(1 << 20)
    node.connect("ann", 1)
    for number in range(300):
        node.subscribe("ann", 1 + number % 3)
        node.end_turn("ann", 1)
    node.finish()
    fake = FakeSource(node)
    history = await grown(fake, "ann")
    kept: list[Any] = history._kept
    assert 2 <= len(kept) <= 8
    await history.at(as_source(fake), position(fake.last, MAX_INDEX))
    read = len(fake.asked)
    assert read <= 2 * history._interval + 2
    await history.at(as_source(fake), position(fake.last, MAX_INDEX))
    assert len(fake.asked) == read, "what was just looked at is at hand"


async def test_events_are_counted_between_times() -> None:
    node = Node(1 << 20)
    node.connect("ann", 1)
    for _ in range(6):
        node.subscribe("ann", 3)
        node.end_turn("ann", 1)
    node.finish()
    history = await grown(FakeSource(node), "ann")
    first = history.first_ms
    assert first is not None
    counts = history.counts([first - 1, first, history.done_ms, history.done_ms + 1])
    assert counts[0] == 0
    assert sum(counts) == len(history)
    assert counts[2]
