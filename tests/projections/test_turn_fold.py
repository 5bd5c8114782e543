"""The fold of events of several sessions equals the fold of the events that they stand for."""

import copy

from hypothesis import given
from hypothesis import strategies as st

from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import SessionOpened, Subscribed
from eventstore.format.fast_parse import parse_events, parse_turn
from eventstore.format.positions import position, to_runs
from eventstore.format.records import GENESIS, decode_record, encode_record
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished, TurnReleased
from eventstore.format.turn_expansion import expanded
from projections.state.digests import session_digest
from projections.state.node_state import NodeState

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
def test_both_folds_give_the_same_state(events: list[Event]) -> None:
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


@given(turns(), st.sampled_from([None, *NAMES]), st.integers(-1, 20))
def test_a_record_read_with_whole_turns_folds_alike(
    events: list[Event], unknown: str | None, included: int
) -> None:
    """Also if it does not know a session, or has one that includes some of the entries."""
    data = encode_record(
        previous=GENESIS, node="n", time_ms=5, events=copy.deepcopy(events), payloads=[]
    )
    found = []
    for whole in (False, True):
        node = begun()
        if unknown is not None:
            node.sessions.discard(unknown)
        if included >= 0 and unknown != NAMES[0]:
            node.load(node.sessions[NAMES[0]], FIRST + included)
        record = decode_record(7, data, whole_turns=whole)
        assert any(raw["e"].startswith("Turn") for raw in record.raw_events) == whole
        node.apply_record(record)
        known = [name for name in NAMES if node.sessions.get(name) is not None]
        found.append((node.entries, known, [session_digest(node, name) for name in known]))
    assert found[0] == found[1]


@given(turns(), st.data())
def test_a_parsed_turn_equals_its_expansion(events: list[Event], data: st.DataObject) -> None:
    """And whatever is wrong in it is left to the expansion, which reports it."""
    stored = encode_record(previous=GENESIS, node="n", time_ms=5, events=events, payloads=[])
    for event, raw in zip(
        events, decode_record(7, stored, whole_turns=True).raw_events, strict=True
    ):
        turn = parse_turn(raw)
        assert (turn is None) == isinstance(event, TurnReleased)
        if turn is None:
            continue
        assert turn == event
        name = data.draw(st.sampled_from(sorted(raw.keys() - {"e"})))
        raw[name] = data.draw(
            st.sampled_from([None, True, "x", -1, [None], [[1]], [-1], ["x"], {}])
        )
        changed = parse_turn(raw)
        if changed is not None:
            single = [*parse_events(7, expanded(raw))]
            assert sum(entries(one) for _, one in single) == entries(changed)
