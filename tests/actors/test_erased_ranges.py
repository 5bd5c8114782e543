"""Ranges of messages that were erased before NATS had them."""

from actors.bridge import bridge
from actors.bridge.bridge import ErasedRanges


def test_a_range_ends_at_a_message_that_is_sent_and_at_a_cursor() -> None:
    ranges = ErasedRanges()
    for place in (5, 6, 9):
        ranges.add(place, follows=True)
    ranges.end_range()
    ranges.add(12, follows=True)
    ranges.end_range()
    ranges.add(14, follows=True)
    assert ranges.take(12) == ([(4, 9, 3), (11, 12, 1)], 12)
    ranges.add(15, follows=True)
    assert ranges.take(20) == ([(13, 15, 2)], 20)
    ranges.add(21, follows=True)
    assert ranges.take(21) == ([(20, 21, 1)], 21)


def test_messages_of_several_prefixes_are_ranges_of_their_own() -> None:
    ranges = ErasedRanges()
    for place in (5, 7, 6):
        ranges.add(place, follows=False)
    assert ranges.take(7) == ([(4, 5, 1), (5, 6, 1), (6, 7, 1)], 7)


def test_many_are_taken_in_parts() -> None:
    ranges, most = ErasedRanges(), bridge._ERASED_AT_ONCE
    for place in range(2, 20 * most + 2, 2):
        assert ranges.full == (place > bridge._MOST_ERASED * 2)
        ranges.add(place, follows=False)
    first, through = ranges.take(1 << 40)
    assert (len(first), through) == (most, 2 * most)
    assert ranges.take(1 << 40)[0][0] == (2 * most + 1, 2 * most + 2, 1)
