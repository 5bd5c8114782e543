"""Records, turns in several parts, void turns, and one session out of many."""

from collections.abc import Sequence

import pytest
from specification import published, snapshot

from eventstore.format.event_parsing import Event, UnreadableEvent
from eventstore.format.events import (
    Acked,
    Delivered,
    SessionClosed,
    SessionExpired,
    SessionOpened,
    Subscribed,
)
from eventstore.format.node_events import BrokerStarted, BrokerStopped
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from projections.state.node_state import NodeState


def record(
    sequence: int,
    *events: Event,
    part: int = 0,
    last: bool = True,
    payloads: Sequence[bytes] = (),
) -> Record:
    data = encode_record(
        previous=GENESIS,
        node="n",
        time_ms=sequence * 10,
        events=events,
        payloads=payloads,
        part=part,
        last=last,
    )
    return decode_record(sequence, data)


def opened(name: str, *, clean: bool = False) -> SessionOpened:
    return SessionOpened(name, False, clean, 4)


def folded(*records: Record, only: str | None = None) -> NodeState:
    node = NodeState()
    for one in records:
        node.apply_record(one, only=only)
    return node


def test_positions_and_times_are_those_of_the_records() -> None:
    event = published(2, [("a", b"xx"), ("b", b"y")], [1, 2], session="c")
    second = published(2, [("a", b"z")], [3], session="c")
    node = folded(
        record(1, opened("c")), record(2, Acked("c", [7, 8, 9]), event, second, payloads=[b"xxyz"])
    )
    assert node.sessions["c"].inbound == {
        1: position(2, 3),
        2: position(2, 4),
        3: position(2, 5),
    }
    assert (node.applied, node.entries) == (2, 1 + 3 + 2 + 1)
    assert (
        folded(record(1, opened("c")), record(2, SessionClosed("c", "x"))).sessions["c"].closed_ms
        == 20
    )


def test_retained_payloads_are_cut_out_of_the_payload_area() -> None:
    first = published(0, [("a", b"one"), ("b", b"")], retain=True)
    second = published(1, [("c", b"four")], [1], retain=True)
    second.at = 3
    node = folded(record(1, first, second, payloads=[b"one", b"", b"four"]))
    kept = {found.topic: found.payload for found in node.retained.match("#")}
    assert kept == {"a": b"one", "c": b"four"}


def test_equal_sizes_are_one_number_in_the_log() -> None:
    event = published(0, [("a", b"11"), ("b", b"22")], retain=True)
    event.sizes = 2
    node = folded(record(1, event, payloads=[b"1122"]))
    assert [found.payload for found in node.retained.match("#")] == [b"11", b"22"]


def test_the_broker_s_own_events_belong_to_no_session() -> None:
    node = folded(record(1, BrokerStarted("1"), BrokerStopped()))
    assert (node.sessions.names(), node.entries) == ([], 2)


@pytest.mark.parametrize("clean", [True, False])
def test_a_clean_session_ends_with_its_connection(*, clean: bool) -> None:
    node = folded(record(1, opened("c", clean=clean), SessionClosed("c", "closed")))
    assert node.sessions.names() == ([] if clean else ["c"])


def test_an_expired_session_is_gone() -> None:
    node = folded(record(1, opened("c"), SessionClosed("c", "x"), SessionExpired("c", "expired")))
    assert not node.sessions


def test_events_of_a_session_that_is_gone_do_not_bring_it_back() -> None:
    node = folded(
        record(1, opened("c", clean=True), SessionClosed("c", "closed")),
        record(2, Acked("c", [1]), Subscribed("c", [("a", 1)]), SessionClosed("c", "again")),
    )
    assert not node.sessions


def test_a_turn_counts_when_its_last_part_is_there() -> None:
    node = NodeState()
    node.apply_record(record(1, opened("a"), part=0, last=False))
    node.apply_record(record(2, opened("b"), part=1, last=False))
    assert (node.sessions.names(), node.applied) == ([], 2)
    node.apply_record(record(3, opened("c"), part=2))
    assert node.sessions.names() == ["a", "b", "c"]
    assert node.entries == 3


def test_parts_without_the_last_one_are_void() -> None:
    node = folded(
        record(1, opened("a"), part=0, last=False),
        record(2, opened("b"), part=1, last=False),
        record(3, opened("c")),
        record(4, opened("d"), part=0, last=False),
        record(5, opened("e"), part=0, last=False),
        record(6, opened("f"), part=1),
        record(7, opened("g"), part=0, last=False),
    )
    assert node.sessions.names() == ["c", "e", "f"]
    assert node.applied == 7


def test_parts_without_their_first_are_void() -> None:
    node = folded(record(4, opened("a"), part=1), record(5, opened("b")))
    assert node.sessions.names() == ["b"]


def test_parts_that_follow_a_void_turn_begin_at_0() -> None:
    node = folded(
        record(1, opened("a"), part=0, last=False),
        record(2, opened("b"), part=0, last=False),
        record(3, opened("c"), part=1),
    )
    assert node.sessions.names() == ["b", "c"]


def test_one_session_alone_is_the_same_as_among_others() -> None:
    records = [
        record(1, BrokerStarted("1"), opened("a"), opened("b")),
        record(2, Subscribed("a", [("x", 1)]), Subscribed("b", [("x", 1)]), part=0, last=False),
        record(
            3,
            Delivered("b", "x", 1, [1], [5]),
            Delivered("a", "x", 1, [1, 2], [5, 6]),
            part=1,
        ),
        record(4, Delivered("a", "x", 1, [3], [7]), part=0, last=False),
        record(5, Acked("a", [1])),
    ]
    everything, alone = folded(*records), folded(*records, only="a")
    assert alone.sessions.names() == ["a"]
    assert snapshot(alone.sessions["a"]) == snapshot(everything.sessions["a"])
    assert list(alone.sessions["a"].inflight) == [2]
    assert folded(*records, only="nobody").sessions.names() == []


def test_an_unknown_event_is_an_error_and_not_skipped() -> None:
    bad = record(1, opened("a"))
    bad.raw_events.append({"e": "SessionTeleported", "v": 1})
    with pytest.raises(UnreadableEvent, match="SessionTeleported"):
        folded(bad)
