"""The live fold, the fold of the written log, and the fold of one session agree."""

from typing import Any

import orjson
from harness.examples import examples
from hypothesis import given
from hypothesis import strategies as st
from randomnode import NAMES, STEPS, Node
from specification import snapshot

from eventstore.format.events import Subscribed
from eventstore.format.positions import INDEX_BITS, from_runs, to_runs
from eventstore.format.records import ChainChecker, decode_record
from projections.state.node_state import NodeState
from projections.state.snapshot import decode_session, encode_session


def everything(node: NodeState) -> dict[str, Any]:
    return {
        "sessions": {name: snapshot(state) for name, state in node.sessions.items()},
        "retained": node.retained.match("#"),
        "size": (len(node.retained), node.retained.size),
    }


@examples(2)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from(STEPS), st.sampled_from(NAMES), st.integers(0, 30)), max_size=80
    ),
    max_record=st.sampled_from([600, 2000, 1 << 20]),
)
def test_live_written_and_single_folds_agree(
    steps: list[tuple[str, str, int]], max_record: int
) -> None:
    node = Node(max_record)
    for step, name, number in [("connect", "ann", 1), ("connect", "bob", 2), *steps]:
        getattr(node, step)(name, number)
    node.finish()

    checker = ChainChecker()
    replayed = NodeState()
    alone = {name: NodeState() for name in NAMES}
    for pending in node.log.records:
        record = decode_record(pending.sequence, pending.data)
        checker.check(record)
        replayed.apply_record(record)
        for name, one in alone.items():
            one.apply_record(record, only=name)

    assert everything(replayed) == everything(node.live)
    for name, one in alone.items():
        assert one.sessions.keys() == {name} & node.live.sessions.keys()
        for key, state in one.sessions.items():
            assert snapshot(state) == snapshot(node.live.sessions[key])
    for state in node.live.sessions.values():
        assert_consistent(state)

    # A log that begins with a checkpoint gives the same state.
    for one in node.live.checkpoints:
        first = one.begun >> INDEX_BITS
        cut = NodeState(first)
        for pending in node.log.records[first - 1 :]:
            cut.apply_record(decode_record(pending.sequence, pending.data))
        assert not cut.partial
        assert everything(cut) == everything(node.live)
    # Snapshots are the state, whole or in parts.
    for name, state in node.live.sessions.items():
        parts = orjson.loads(orjson.dumps(encode_session(state)))
        assert snapshot(decode_session(name, parts)) == snapshot(state)


def assert_consistent(state: Any) -> None:
    """What must be true of every state, whatever happened."""
    assert not state.inflight.keys() & state.releasing.keys()
    outstanding: dict[str, int] = {}
    for sent in [*state.inflight.values(), *state.releasing.values()]:
        outstanding[sent.subscription.filter] = outstanding.get(sent.subscription.filter, 0) + 1
        assert state.subscriptions[sent.subscription.filter] is sent.subscription
    for name, held in state.subscriptions.items():
        assert held.outstanding == outstanding.get(name, 0)
        assert held.active or held.outstanding or held.queue
    assert state.queued == sum(len(held.queue or ()) for held in state.subscriptions.values())


@given(st.lists(st.integers(0, 1 << 60)))
def test_runs_round_trip(values: list[int]) -> None:
    assert from_runs(to_runs(values)) == values


@given(
    st.lists(
        st.tuples(st.integers(-50, 1 << 50), st.integers(1, 12), st.integers(-3, 3)), max_size=8
    )
)
def test_progressions_round_trip(progressions: list[tuple[int, int, int]]) -> None:
    values = [first + step * at for first, count, step in progressions for at in range(count)]
    assert from_runs(to_runs(values)) == values


def test_a_progression_is_one_run() -> None:
    assert to_runs(range(5, 5000)) == [[5, 4995, 1]]
    assert to_runs([9, 7, 5]) == [[9, 3, -2]]
    assert to_runs([4, 4, 4]) == [4, 4, 4]


def test_subscribed_is_one_of_the_events_that_take_part() -> None:
    """The steps above reach a state in which something of everything is there."""
    node = Node(1 << 20)
    for step, name, number in [
        ("connect", "ann", 3), ("subscribe", "ann", 3), ("publish", "ann", 11),
        ("publish", "ann", 13), ("drain", "ann", 9), ("acknowledge", "ann", 0),
    ]:  # fmt: skip
        getattr(node, step)(name, number)
    node.finish()
    kinds = {
        raw["e"]
        for pending in node.log.records
        for raw in decode_record(pending.sequence, pending.data).raw_events
    }
    assert {"SessionOpened", "WillArmed", Subscribed.__name__, "MessagePublished"} < kinds
    assert {"Delivered", "Acked"} < kinds
