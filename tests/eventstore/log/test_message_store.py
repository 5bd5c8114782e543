from typing import Any

import pytest
from samples import PAYLOADS, WILL, first_events

from eventstore.format.events import MessagePublished, WillArmed
from eventstore.format.positions import position
from eventstore.format.records import GENESIS, Record, decode_record, encode_record
from eventstore.log.message_store import Message, MessageStore, StoredMessages, messages_of


def record(sequence: int, events: list[Any], payloads: list[bytes]) -> Record:
    data = encode_record(previous=GENESIS, node="n", time_ms=1, events=events, payloads=payloads)
    return decode_record(sequence, data)


def stored(sequence: int, index: int, *payloads: bytes) -> StoredMessages:
    topics = [b"t%d" % at for at in range(len(payloads))]
    return StoredMessages(position(sequence, index), topics, payloads, sum(map(len, payloads)))


def test_every_message_and_will_of_a_record_is_found_by_its_position() -> None:
    events = first_events()
    held = MessageStore(1 << 20)
    whole = record(5, events, [*PAYLOADS, WILL])
    held.add_record(whole)
    places = {event.e: index for index, event in whole.events()}
    at = position(5, places["MessagePublished"])
    assert [held.get(at + offset) for offset in range(3)] == [
        Message(b"a/b", PAYLOADS[0], retain=True, publisher="c"),
        Message(b"a/c", PAYLOADS[1], retain=True, publisher="c"),
        Message(b"a/b", PAYLOADS[2], retain=True, publisher="c"),
    ]
    assert held.get(position(5, places["WillArmed"])) == Message(b"will/c", WILL)
    for kind in ("BrokerStarted", "Subscribed", "Delivered", "BrokerStopped"):
        assert held.get(position(5, places[kind])) is None


def test_several_events_of_one_record_with_payloads_of_one_size() -> None:
    first = MessagePublished("a", 1, False, ["x"], [], [1, 2], 2, 0, 2)
    second = MessagePublished("b", 1, False, ["y", "z"], [1, 0], [1, 2], 1, 4, 2)
    will = WillArmed("c", "w", 0, False, 3, 6)
    found = messages_of(record(1, [first, will, second], [b"aabb", b"cd", b"www"]))
    assert [(one.first, one.topics, one.payloads, one.size) for one in found] == [
        (position(1, 0), [b"x", b"x"], [b"aa", b"bb"], 4),
        (position(1, 2), [b"w"], [b"www"], 3),
        (position(1, 3), [b"z", b"y"], [b"c", b"d"], 2),
    ]


def test_positions_between_and_beside_the_messages_are_not_found() -> None:
    held = MessageStore(1 << 20)
    held.add(stored(3, 4, b"a", b"b"))
    held.add(stored(3, 9, b"c"))
    found = {index: held.get(position(3, index)) for index in range(12)}
    assert {index: message.payload for index, message in found.items() if message} == {
        4: b"a",
        5: b"b",
        9: b"c",
    }
    assert held.get(position(2, 4)) is None
    assert held.get(position(4, 4)) is None


def test_the_oldest_records_are_evicted() -> None:
    held = MessageStore(4000)
    for sequence in range(1, 11):
        held.add(stored(sequence, 0, b"x" * 900))
    assert [n for n in range(1, 11) if held.get(position(n, 0))] == [7, 8, 9, 10][-len(held) :]
    assert 1 <= len(held) <= 4


def test_one_record_may_exceed_the_limit() -> None:
    held = MessageStore(10)
    held.add(stored(1, 0, b"x" * 900))
    held.add(stored(1, 1, b"y" * 900))
    assert held.get(position(1, 0))
    assert held.get(position(1, 1))
    held.add(stored(2, 0, b"z"))
    assert held.get(position(1, 0)) is None
    assert held.get(position(2, 0)) == Message(b"t0", b"z")


def test_size_is_counted_down_again() -> None:
    # A message of 900 bytes alone in its batch takes 1 400, with what holds it.
    held = MessageStore(140_000)
    for sequence in range(1, 2000):
        held.add(stored(sequence, 0, b"x" * 900))
    assert len(held) == pytest.approx(100, abs=2)


def test_a_record_of_which_a_part_is_at_hand_is_completed() -> None:
    first = MessagePublished("a", 1, False, ["x"], [], [1], 2, 0, 1)
    second = MessagePublished("a", 1, False, ["x"], [], [2], 2, 2, 1)
    whole = record(1, [first, second], [b"aabb"])
    held = MessageStore(1 << 20)
    held.add(StoredMessages(position(1, 1), [b"x"], [b"bb"], 2))
    assert held.get(position(1, 0)) is None
    for _ in range(3):
        held.add_record(whole)
        assert held.get(position(1, 0)) == Message(b"x", b"aa", publisher="a")
        assert held.get(position(1, 1)) == Message(b"x", b"bb", publisher="a")


def test_loading_again_makes_a_record_the_youngest() -> None:
    whole = record(1, [MessagePublished("a", 1, False, ["x"], [], [1], 900, 0, 1)], [b"x" * 900])
    held = MessageStore(4900)
    held.add_record(whole)
    held.add(stored(2, 0, b"y" * 900))
    held.add_record(whole)
    held.add(stored(3, 0, b"y" * 900))
    held.add(stored(4, 0, b"y" * 900))
    assert held.get(position(1, 0))
    assert held.get(position(2, 0)) is None
