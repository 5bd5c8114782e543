"""The fold of events of several sessions equals the fold of the events that they stand for."""

from __future__ import annotations

import copy

from hypothesis import given
from hypothesis import strategies as st

from eventstore.format import (
    GENESIS,
    Event,
    SessionOpened,
    Subscribed,
    TurnAcked,
    TurnDelivered,
    TurnPublished,
    TurnReleased,
    decode_record,
    encode_record,
    position,
    to_runs,
)
from projections.state import NodeState, session_digest

NAMES = ["a", "b", "c"]
FIRST = position(7, 0)


def begun() -> NodeState:
    node = NodeState()
    for number, name in enumerate(NAMES):
        node.apply(SessionOpened(name, False, False, 4), number, 1)
        node.apply(Subscribed(name, [("t", 2), ("#", 1)]), number, 1)
    node.dirty = {}
    return node


@st.composite
def turns(draw: st.DrawFn) -> list[Event]:
    """Some deliveries, of which some are acknowledged; QoS 2 messages, of which some are let go."""
    count = draw(st.integers(1, 8))
    by = [draw(st.integers(0, 2)) for _ in range(count)]
    pids = [draw(st.integers(1, 60_000)) * 4 + at % 4 for at in range(count)]
    pids = [pid % 65_535 + 1 for pid in pids]
    qos = draw(st.sampled_from([1, 2]))
    refs = [FIRST + 100 + at for at in range(count)]
    filters = [draw(st.sampled_from(["t", "#"])) for _ in NAMES]
    events: list[Event] = [TurnDelivered(NAMES, filters, by, qos, pids, to_runs(refs))]
    some = draw(st.lists(st.sampled_from(range(count)), unique=True))
    of = [by[at] for at in some]
    if some and qos == 1:
        events.append(TurnAcked("Acked", NAMES, of, [pids[at] for at in some]))
    elif some:
        events.append(TurnAcked("Received", NAMES, of, [pids[at] for at in some]))
        events.append(TurnAcked("Completed", NAMES, of[:1], [pids[some[0]]]))
    events.append(TurnPublished(NAMES, by, 2, ["t"], [], list(range(1, count + 1)), 0, 0, count))
    if some:
        released = [at + 1 for at in some]
        events.append(TurnReleased(NAMES, of, released, to_runs(refs[: len(some)])))
    return events


@given(turns())
def test_both_folds_come_to_the_same_state(events: list[Event]) -> None:
    data = encode_record(
        previous=GENESIS, node="n", time_ms=5, events=copy.deepcopy(events), payloads=[]
    )
    record = decode_record(7, data)
    single, shared = begun(), begun()
    for index, event in record.events():
        single.apply(event, FIRST + index, 5)
    at = FIRST
    for event in events:
        shared.apply(event, at, 5)
        at += getattr(event, "count", 0) or len(event.pids)  # type: ignore[union-attr]
    for name in NAMES:
        assert session_digest(shared, name) == session_digest(single, name)
    assert single.dirty is not None
    assert shared.dirty is not None
    assert single.dirty.keys() <= shared.dirty.keys()
