"""What a step of a replay selects: order, bounds, permissions, the end."""

from collections import deque
from collections.abc import Sequence

import pytest

from actors.replay.selection import (
    BYTES_AT_ONCE,
    MESSAGES_AT_ONCE,
    RECORDS_AT_ONCE,
    LastMessages,
    LogRecord,
    Rules,
    Step,
    TopicMatches,
    select,
)
from actors.session.position_properties import with_position
from eventstore.format.positions import position
from eventstore.log.message_store import Message
from eventstore.reading.publications import Publications
from protocol.mqtt.message_properties import (
    MessageProperties,
    decode_message_properties,
    encode_message_properties,
)


def record(sequence: int, *topics: str, qos: int = 1, payload: bytes = b"x") -> LogRecord:
    places = range(position(sequence, 0), position(sequence, len(topics)))
    names = [topic.encode() for topic in topics]
    published = Publications(
        "p", qos, retain=False, positions=places, refs=places, topics=names,
        payloads=[payload] * len(names), time_ms=sequence * 1000, steady_ms=sequence * 1000,
    )  # fmt: skip
    return LogRecord(sequence, sequence * 1000, [published] if topics else [], 1)


def rules(topic_filter: str = "a/#", qos: int = 2, denied: str = "", **more: int) -> Rules:
    def why_not(message: Message, _qos: int, _publications: Publications) -> str:
        return "not_permitted" if message.topic.decode() == denied else ""

    return Rules(
        TopicMatches(topic_filter), qos, why_not, more.get("until"), more.get("until_ms", 0)
    )


def step(
    records: Sequence[LogRecord], given: Rules, through: int = 0, room: int = 1000
) -> tuple[Step, deque[LogRecord]]:
    ahead = deque(records)
    return select(ahead, through, given, room, lambda: False), ahead


def topics(chosen: Step) -> list[str]:
    return [entry.message.topic.decode() for entry in chosen.entries]


def test_matching_messages_in_order() -> None:
    chosen, ahead = step([record(5, "a/1", "b", "a/2"), record(6, "b"), record(7, "a/3")], rules())
    assert topics(chosen) == ["a/1", "a/2", "a/3"]
    assert [entry.at for entry in chosen.entries] == [
        position(5, 0),
        position(5, 2),
        position(7, 0),
    ]
    assert (chosen.through, chosen.records, len(ahead)) == (position(8, 0) - 1, 3, 0)


def test_it_goes_on_just_after_a_position() -> None:
    chosen, _ = step([record(5, "a/1", "a/2", "a/3")], rules(), position(5, 0))
    assert topics(chosen) == ["a/2", "a/3"]


@pytest.mark.parametrize("room", [0, 1, 2])
def test_without_room_the_cursor_stands_before_the_next_message(room: int) -> None:
    chosen, ahead = step([record(5, "b", "a/1", "a/2", "a/3")], rules(), room=room)
    assert (len(chosen.entries), chosen.no_room, len(ahead)) == (room, True, 1)
    assert chosen.through == position(5, room)


def test_messages_at_qos_0_need_no_room() -> None:
    chosen, _ = step([record(5, "a/1", "a/2")], rules(qos=0), room=0)
    assert [entry.qos for entry in chosen.entries] == [0, 0]
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
    assert [entry.at for entry in chosen.entries] == [
        position(5, 1), position(5, 2), position(7, 0), position(8, 0),
    ]  # fmt: skip


def test_the_bounds_of_a_step() -> None:
    many, _ = step([record(5, *["a/1"] * (MESSAGES_AT_ONCE + 5))], rules())
    assert len(many.entries) == MESSAGES_AT_ONCE
    rest, _ = step([record(5, *["a/1"] * (MESSAGES_AT_ONCE + 5))], rules(), many.through)
    assert len(rest.entries) == 5
    large, _ = step([record(5, *["a/1"] * 9, payload=bytes(BYTES_AT_ONCE // 4))], rules())
    assert len(large.entries) == 4
    empty, ahead = step([record(5 + at) for at in range(RECORDS_AT_ONCE + 5)], rules())
    assert (empty.records, len(ahead)) == (RECORDS_AT_ONCE, 5)


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
    chosen = select(ahead, 0, rules(), 10, lambda: True)
    assert not chosen.entries
    assert position(5, 0) < chosen.through < position(5, 2000)
    assert topics(select(ahead, position(5, 1999), rules(), 10, lambda: False)) == ["a/1"]


@pytest.mark.parametrize("expiry", [None, 60])
def test_positions_come_before_the_properties_of_the_publisher(expiry: int | None) -> None:
    block = encode_message_properties(
        MessageProperties(expiry=expiry, content_type="text", user=(("foldmq-position", "1.0"),))
    )
    message = Message(b"t", b"x", block)
    gap = position(3, 1), position(5, 0) - 1
    found = decode_message_properties(with_position(message, position(7, 2), 1500, gap).block)
    assert found.user == (
        ("foldmq-position", "7.2"),
        ("foldmq-time", "1970-01-01T00:00:01.500Z"),
        ("foldmq-gap", "3.1..4"),
        ("foldmq-position", "1.0"),
    )
    assert (found.expiry, found.content_type) == (expiry, "text")
