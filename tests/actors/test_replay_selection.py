"""What a step of a replay selects: order, bounds, permissions, the end."""

from collections import deque
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.replay.selection import (
    BYTES_AT_ONCE,
    MESSAGES_AT_ONCE,
    RECORDS_AT_ONCE,
    Budget,
    LastMessages,
    LogRecord,
    Rules,
    Run,
    Step,
    TopicMatches,
    keep_latest,
    references,
    select,
)
from actors.session.position_properties import encode_with_positions, position_blocks
from eventstore.format.positions import from_runs, position
from eventstore.reading.publications import Publications
from protocol.mqtt.message_properties import (
    MessageProperties,
    decode_message_properties,
    encode_message_properties,
)
from protocol.mqtt.publish_encoder_v5 import PacketVariant, prepare_publishes


def record(sequence: int, *topics: str, qos: int = 1, payload: bytes = b"x") -> LogRecord:
    places = range(position(sequence, 0), position(sequence, len(topics)))
    names = [topic.encode() for topic in topics]
    published = Publications(
        "p", qos, retain=False, positions=places, refs=places, topics=names,
        payloads=[payload] * len(names), time_ms=sequence * 1000, steady_ms=sequence * 1000,
    )  # fmt: skip
    return LogRecord(sequence, sequence * 1000, [published] if topics else [], 1)


def rules(topic_filter: str = "a/#", qos: int = 2, denied: str = "", **more: int) -> Rules:
    def why_not(publications: Publications, number: int, _qos: int) -> str:
        return "not_permitted" if publications.topics[number].decode() == denied else ""

    until, until_ms = more.get("until"), more.get("until_ms", 0)
    return Rules(TopicMatches(topic_filter), qos, lambda _: bool(denied), why_not, until, until_ms)


def step(
    records: Sequence[LogRecord],
    given: Rules,
    through: int = 0,
    room: int = 5000,
    *,
    shared: bool = False,
) -> tuple[Step, deque[LogRecord]]:
    ahead = deque(records)
    return select(ahead, through, given, Budget(room, shared=shared), lambda: False), ahead


def topics(chosen: Step) -> list[str]:
    return [
        run.publications.topics[number].decode() for run in chosen.runs for number in run.numbers
    ]


def places(chosen: Step) -> list[int]:
    return [run.publications.positions[number] for run in chosen.runs for number in run.numbers]


def test_matching_messages_in_order() -> None:
    chosen, ahead = step([record(5, "a/1", "b", "a/2"), record(6, "b"), record(7, "a/3")], rules())
    assert topics(chosen) == ["a/1", "a/2", "a/3"]
    assert places(chosen) == [position(5, 0), position(5, 2), position(7, 0)]
    assert (chosen.through, chosen.records, len(ahead)) == (position(8, 0) - 1, 3, 0)


def test_it_goes_on_just_after_a_position() -> None:
    chosen, _ = step([record(5, "a/1", "a/2", "a/3")], rules(), position(5, 0))
    assert topics(chosen) == ["a/2", "a/3"]


@pytest.mark.parametrize("room", [0, 1, 2])
def test_without_room_the_cursor_stands_before_the_next_message(room: int) -> None:
    chosen, ahead = step([record(5, "b", "a/1", "a/2", "a/3")], rules(), room=room)
    assert (chosen.sent, chosen.no_room, len(ahead)) == (room, True, 1)
    assert chosen.through == position(5, room)


def test_messages_at_qos_0_need_no_room() -> None:
    chosen, _ = step([record(5, "a/1", "a/2")], rules(qos=0), room=0)
    assert [run.qos for run in chosen.runs] == [0]
    assert not chosen.no_room


def test_what_is_left_out_is_counted_and_passed() -> None:
    chosen, _ = step([record(5, "a/1", "a/no", "b", "a/no")], rules(denied="a/no"), room=1)
    assert topics(chosen) == ["a/1"]
    assert chosen.left_out == {"not_permitted": 2}
    assert chosen.through == position(6, 0) - 1


def test_records_that_were_read_before_change_nothing() -> None:
    chosen, ahead = step([record(5, "a/1"), record(4, "a/0"), record(6, "a/2")], rules())
    assert topics(chosen) == ["a/1", "a/2"]
    assert (chosen.through, len(ahead)) == (position(7, 0) - 1, 0)


def test_records_before_the_beginning_are_skipped_until_the_log_reaches_it() -> None:
    given = rules()
    given.start_ms = 6000
    records = [record(5, "a/1"), record(6, "a/2"), record(7, "a/3")._replace(time_ms=100)]
    chosen, _ = step(records, given)
    assert topics(chosen) == ["a/2", "a/3"]
    assert given.start_ms == 0


def test_the_last_message_of_each_topic() -> None:
    records = [record(5, "a/1", "a/2", "a/1"), record(6, "b"), record(7, "a/3"), record(8, "a/2")]
    last = LastMessages(position(7, 0), -1)
    for one in records:
        last.add(one, TopicMatches("a/#"))
    assert last.complete
    assert [last.after(at) for at in (0, position(5, 2), position(7, 0))] == [
        position(5, 1) - 1, position(7, 0) - 1, position(7, 0),
    ]  # fmt: skip
    given = rules()
    given.last = last
    chosen, _ = step(records, given)
    assert places(chosen) == [
        position(5, 1), position(5, 2), position(7, 0), position(8, 0),
    ]  # fmt: skip


def test_the_bounds_of_a_step() -> None:
    many, _ = step([record(5, *["a/1"] * (MESSAGES_AT_ONCE + 5))], rules())
    assert many.sent == MESSAGES_AT_ONCE
    rest, _ = step([record(5, *["a/1"] * (MESSAGES_AT_ONCE + 5))], rules(), many.through)
    assert rest.sent == 5
    large, _ = step([record(5, *["a/1"] * 9, payload=bytes(BYTES_AT_ONCE // 4))], rules())
    assert large.sent == 4
    empty, ahead = step([record(5 + at) for at in range(RECORDS_AT_ONCE + 5)], rules())
    assert (empty.records, len(ahead)) == (RECORDS_AT_ONCE, 5)


def test_steps_are_smaller_while_other_clients_are_active() -> None:
    few, _ = step([record(5, *["a/1"] * MESSAGES_AT_ONCE)], rules(), shared=True)
    assert few.sent == MESSAGES_AT_ONCE // 4
    large, _ = step(
        [record(5, *["a/1"] * 9, payload=bytes(BYTES_AT_ONCE // 4))], rules(), shared=True
    )
    assert large.sent == 1


def test_steps_of_several_logs_share_a_budget_and_stop_where_another_log_goes_on() -> None:
    budget, given = Budget(3), rules()
    given.before_ms = 6000
    ahead = deque([record(5, "a/1", "a/2"), record(6, "a/3")])
    first = select(ahead, 0, given, budget, lambda: False)
    assert (topics(first), first.interrupted, len(ahead)) == (["a/1", "a/2"], False, 1)
    given.before_ms = 7000
    second = select(deque([record(6, "a/4", "a/5", "a/6")]), 0, given, budget, lambda: False)
    assert (topics(second), second.interrupted, second.no_room) == (["a/4"], True, True)
    assert (second.sent, budget.room) == (1, 0)


def test_of_several_logs_the_latest_message_of_a_topic_is_the_last() -> None:
    here, there = LastMessages(position(9, 0), -1), LastMessages(position(9, 0), -1)
    for one in (record(5, "a/1", "a/2"), record(7, "a/3"), record(9)):
        here.add(one, TopicMatches("a/#"))
    for one in (record(6, "a/1"), record(7, "a/3"), record(9)):
        there.add(one, TopicMatches("a/#"))
    keep_latest([here, there])
    known = (position(5, 0), position(5, 1), position(7, 0))
    kept = [at for at in known if not here.is_left_out(at)]
    assert kept == [position(5, 1)]
    assert not there.is_left_out(position(6, 0))
    assert not there.is_left_out(position(7, 0)), "of two at the same time that of the later log"


def test_what_is_left_out_behind_the_last_message_is_not_counted_yet() -> None:
    records = [record(5, "a/no", "a/1", "a/no", "a/2", "a/no")]
    chosen, _ = step(records, rules(denied="a/no"), room=1)
    assert (topics(chosen), chosen.left_out) == (["a/1"], {"not_permitted": 2})
    assert (chosen.through, chosen.no_room) == (position(5, 2), True)


def test_it_ends_at_a_position() -> None:
    records = [record(5, "a/1", "a/2", "a/3"), record(6, "a/4")]
    within, _ = step(records, rules(until=position(5, 1)))
    assert (topics(within), within.ended, within.through) == (["a/1", "a/2"], True, position(5, 1))
    whole, _ = step(records, rules(until=position(6, 0) - 1))
    assert (topics(whole), whole.ended) == (["a/1", "a/2", "a/3"], True)


def test_it_ends_at_a_time() -> None:
    chosen, _ = step([record(5, "a/1"), record(6, "a/2"), record(7, "a/3")], rules(until_ms=6000))
    assert (topics(chosen), chosen.ended) == (["a/1", "a/2"], True)


def test_a_late_step_stops_within_a_long_record() -> None:
    ahead = deque([record(5, *["b"] * 2000, "a/1")])
    chosen = select(ahead, 0, rules(), Budget(10), lambda: True)
    assert not chosen.sent
    assert position(5, 0) < chosen.through < position(5, 2000)
    assert topics(select(ahead, position(5, 1999), rules(), Budget(10), lambda: False)) == ["a/1"]


@pytest.mark.parametrize("expiry", [None, 60])
def test_positions_come_before_the_properties_of_the_publisher(expiry: int | None) -> None:
    block = encode_message_properties(
        MessageProperties(expiry=expiry, content_type="text", user=(("foldmq-position", "1.0"),))
    )
    gap = "3.1..4"
    blocks = position_blocks((position(7, 2), position(7, 3)), 1500, (block, b""), gap)
    found, following = map(decode_message_properties, blocks)
    assert found.user == (
        ("foldmq-position", "7.2"),
        ("foldmq-time", "1970-01-01T00:00:01.500Z"),
        ("foldmq-gap", "3.1..4"),
        ("foldmq-position", "1.0"),
    )
    assert (found.expiry, found.content_type) == (expiry, "text")
    assert following.user == (
        ("foldmq-position", "7.3"),
        ("foldmq-time", "1970-01-01T00:00:01.500Z"),
    )
    (unknown,) = map(decode_message_properties, position_blocks((position(7, 2),), None))
    assert unknown.user == (("foldmq-position", "7.2"),)
    (of_stream,) = position_blocks((position(7, 2),), 1500, of_stream=True)
    assert decode_message_properties(of_stream).user[1:] == (
        ("foldmq-time", "1970-01-01T00:00:01.500Z"),
        ("ts", "1500000"),
    )


@given(
    st.lists(st.integers(0, 5000), min_size=1, max_size=40, unique=True),
    st.integers(1, 2**40),
    st.integers(0, 2),
    st.booleans(),
    st.booleans(),
    st.sampled_from([(), (7,), (200_000,)]),
)
def test_packets_with_positions_are_those_of_messages_with_blocks(
    indices: list[int],
    sequence: int,
    qos: int,
    retain: bool,
    of_stream: bool,
    identifiers: tuple[int, ...],
) -> None:
    places = [position(sequence, index) for index in sorted(indices)]
    names = [b"a/%d" % (at % 3) for at in places]
    payloads = [b"x" * (at % 200) for at in places]
    pids = list(range(9, 9 + len(places))) if qos else []
    variant = PacketVariant(qos, retain=retain, identifiers=identifiers)
    blocks = position_blocks(places, 1500, of_stream=of_stream)
    expected = prepare_publishes(names, payloads, blocks, variant).render(pids)
    data = encode_with_positions(names, payloads, places, 1500, variant, pids, of_stream=of_stream)
    assert data == expected


@pytest.mark.parametrize("indices", [range(12), range(95, 205), range(4090, 4100), [4, 9, 1000]])
def test_packets_with_positions_of_neighbours(indices: Sequence[int]) -> None:
    places = [position(7, index) for index in indices]
    if isinstance(indices, range):
        places = range(position(7, indices.start), position(7, indices.stop))
    names, payloads = [b"a"] * len(places), [b"x"] * len(places)
    blocks = position_blocks(places, 1500)
    expected = prepare_publishes(names, payloads, blocks, PacketVariant(0)).render()
    assert encode_with_positions(names, payloads, places, 1500, PacketVariant(0)) == expected


def test_references_are_runs_of_neighbours() -> None:
    def run(refs: Sequence[int], *numbers: int) -> Run:
        (published,) = record(5, *["a"] * len(refs)).publications
        published.refs = refs
        return Run(published, numbers or range(len(refs)), 1)

    assert references([run(range(10, 14)), run(range(14, 18)), run(range(30, 33))]) == [
        [10, 8, 1],
        [30, 3, 1],
    ]
    assert references([run(range(10, 18), 0, 2, 4)]) == [[10, 3, 2]]
    assert references([run([5, 6, 7]), run(range(8, 10))]) == [[5, 5, 1]]


def test_references_to_events_with_a_message_each_are_runs() -> None:
    places = [position(sequence, 1) for sequence in range(2, 60)]
    runs = [Run(record(5, "a").publications[0], range(1), 1) for _ in places]
    for (published, _, _), place in zip(runs, places, strict=True):
        published.refs = range(place, place + 1)
    assert references(runs) == [[places[0], 58, position(1, 0)]]
    (long,) = record(99, *["a"] * 4).publications
    assert from_runs(references([*runs, Run(long, range(4), 1), *runs[:1]])) == [
        *places,
        *long.refs,
        places[0],
    ]
