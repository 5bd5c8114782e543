"""Sealed contents of records: encoding, opening, and what stays readable without the keys."""

from __future__ import annotations

import secrets
from base64 import b64decode
from typing import Any

import pytest

from eventstore.errors import CorruptLog
from eventstore.format.events import MessagePublished
from eventstore.format.records import GENESIS, decode_record
from eventstore.format.sealing import (
    AreaSeal,
    RecordSeal,
    SealedBytes,
    cipher_of,
    first_sealed,
    is_closed,
    key_check,
    new_salt,
    parts_in,
    parts_in_list,
    sealed_parts,
)
from eventstore.log.journal import Journal
from eventstore.log.message_store import messages_of

KEYS = {number: secrets.token_bytes(32) for number in (1, 2, 7)}
EARLIER = (
    b"Rk1RAooD7y/y2X4B8P9trJh9wX2sVrj3VrLWJTnob/40rDzmAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAACJ"
    b"AAAARAAAAQ8AAQIDBAUGBwgJCgsMDQ4Pg0cJqOcFixN4jOCMk+LURFADDmiJqY6ZjmmsTrShIZgBsg1b7CcDjcfRzESE"
    b"bCLBgtcMEqBAy8goeA1hSQBXYRtbCwACAAAAPA2sD31GU/NLTXvD0Q=="
)
"""A record as commit 04e2b028 wrote it, with one sealed message."""
EXPIRING = b"\x02\x00\x00\x00\x3c" + b"\x08\x00\x03abc"


class Disk:
    """A store that keeps the records it is sent."""

    def __init__(self) -> None:
        self.records: list[bytes] = []

    def send(self, record: object) -> None:
        self.records.append(record.data)


class Clock:
    """A clock that stands still."""

    def steady_ms(self) -> int:
        return 1_700_000_000_000

    def monotonic(self) -> float:
        return 1.0


def journal(disk: Disk, keys: object = KEYS.get) -> Journal:
    made = Journal(disk, Clock(), node="n", sequence=0, link=GENESIS, max_record=1 << 20)
    made.cipher = None if keys is None else cipher_of(keys)
    return made


def published(topics: list[str], sizes: list[int], blocks: list[int] = (), of: list[int] = ()):
    count = len(sizes)
    which = list(range(count)) if len(topics) > 1 else []
    return MessagePublished(
        "c", 1, False, topics, which, [1], sizes, 0, count, False, blocks=blocks, block_of=of
    )


def sealed(data: bytes, key: int, *, opened: bool = True) -> SealedBytes:
    return SealedBytes.of(data, key, opened=opened)


def written(*events: tuple[MessagePublished, list[bytes]]) -> bytes:
    disk = Disk()
    made = journal(disk)
    for event, pieces in events:
        keys = [piece.key if isinstance(piece, SealedBytes) else 0 for piece in pieces]
        made.append(event, event.count, pieces, sum(map(len, pieces)), keys)
    made.flush()
    made.end_turn()
    return disk.records[0]


def area_seal(salt: bytes) -> AreaSeal:
    return AreaSeal(salt, cipher_of(KEYS.get))


def record_seal(salt: bytes) -> RecordSeal:
    return RecordSeal(salt, KEYS.get)


@pytest.mark.parametrize("seal_of", [area_seal, record_seal])
def test_a_sealed_part_is_opened_at_its_offset_alone(seal_of: Any) -> None:
    seal = seal_of(new_salt())
    data = secrets.token_bytes(100)
    for begin in (0, 1, 15, 16, 17, 1000):
        turned = seal.turned(1, begin, data)
        assert len(turned) == len(data)
        assert turned != data
        assert seal.turned(1, begin, turned) == data
        assert seal.turned(1, begin + 1, turned) != data
        assert seal.turned(2, begin, turned) != data


@pytest.mark.parametrize("seal_of", [area_seal, record_seal])
def test_parts_of_one_area_use_one_key_stream_without_repeating_it(seal_of: Any) -> None:
    seal = seal_of(new_salt())
    whole = secrets.token_bytes(200)
    assert seal.turned(1, 0, whole) == seal.turned(1, 0, whole[:37]) + seal.turned(
        1, 37, whole[37:]
    )


def test_the_counter_begins_at_the_salt_and_goes_on_at_zero_behind_the_highest() -> None:
    zeros, highest = bytes(16), b"\xff" * 16
    low, high = area_seal(zeros), area_seal(highest)
    stream = low.turned(1, 0, bytes(64))
    assert high.turned(1, 16, bytes(64)) == stream
    assert high.turned(1, 0, bytes(80))[16:] == stream
    assert area_seal((5).to_bytes(16, "big")).turned(1, 0, bytes(16)) == low.turned(
        1, 5 * 16, bytes(16)
    )


def test_records_use_different_parts_of_the_key_stream_of_a_key() -> None:
    streams = [area_seal(new_salt()).turned(1, 0, bytes(1 << 16)) for _ in range(8)]
    blocks = [stream[at : at + 16] for stream in streams for at in range(0, 1 << 16, 16)]
    assert len(set(blocks)) == len(blocks)


def test_nothing_is_written_without_a_key() -> None:
    assert area_seal(new_salt()).turned(9, 0, b"secret") == b"sealed"
    assert record_seal(new_salt()).turned(9, 0, b"secret") == b"sealed"
    data = written((published(["a"], [6]), [sealed(b"secret", 9)]))
    assert b"secret" not in data


def test_a_record_of_the_earlier_layout_is_opened() -> None:
    record = decode_record(1, b64decode(EARLIER))
    ((_, event),) = record.events()
    assert [is_closed(part) for part in record.pieces(event)] == [True, True]
    assert record.blocks(event)[0][:5] == EXPIRING[:5]
    record.open({5: bytes(range(32))}.get)
    assert record.pieces(event) == [EXPIRING, b"secret"]
    assert [(part.key, part.opened) for part in record.pieces(event)] == [(5, True)] * 2


def test_a_record_says_of_equal_parts_only_where_they_begin() -> None:
    one = decode_record(1, written((published(["a"], [6] * 3), [sealed(b"secret", 7)] * 3)))
    assert b'"sealed":[[[0,3,6]],6,7]' in one.header
    two = decode_record(
        1, written((published(["a"], [2, 3]), [sealed(b"ab", 7), sealed(b"abc", 1)]))
    )
    assert b'"sealed":[[0,2],[2,3],[7,1]]' in two.header
    assert one.sealed == {(0, 6): 7, (6, 12): 7, (12, 18): 7}
    assert two.sealed == {(0, 2): 7, (2, 5): 1}


def test_the_check_of_a_key_tells_keys_apart() -> None:
    assert len({key_check(key) for key in KEYS.values()}) == len(KEYS)
    assert key_check(KEYS[1]) == key_check(bytes(KEYS[1]))


def test_a_record_has_no_sealed_content_and_all_others() -> None:
    data = written(
        (
            published(["a", "b"], [6, 6]),
            [sealed(b"secret", 7), b"public"],
        )
    )
    assert b"secret" not in data
    assert b"public" in data
    record = decode_record(1, data)
    ((_, event),) = record.events()
    first, second = record.payloads(event)
    assert is_closed(first)
    assert first.key == 7
    assert second == b"public"
    assert not isinstance(second, SealedBytes)
    record.open(KEYS.get)
    first, second = record.payloads(event)
    assert (first, second) == (b"secret", b"public")
    assert not is_closed(first)
    assert first.key == 7


def test_without_the_key_the_rest_of_a_message_is_known() -> None:
    block = sealed(EXPIRING, 1)
    data = written((published(["a"], [3], [len(block)]), [block, sealed(b"xyz", 1)]))
    assert b"abc" not in data
    record = decode_record(1, data)
    record.open(lambda _: None)
    ((_, event),) = record.events()
    (found,) = record.blocks(event)
    assert found[: first_sealed(found)] == EXPIRING[:5]
    assert is_closed(found)
    (message,) = messages_of(record)
    assert message.expires == [1_700_000_000 + 60]
    assert len(message.payloads[0]) == 3
    record.open(KEYS.get)
    assert record.blocks(event) == [EXPIRING]
    assert record.payloads(event) == [b"xyz"]


@pytest.mark.parametrize("payload", [b"\x02", b"\x02abcdef", bytes(40_000)])
def test_any_payload_is_restored(payload: bytes) -> None:
    data = written(
        (published(["a", "b", "c"], [len(payload)] * 3), [sealed(payload, n) for n in (1, 2, 1)])
    )
    record = decode_record(1, data)
    ((_, event),) = record.events()
    assert [(is_closed(one), one.key) for one in record.payloads(event)] == [
        (True, 1),
        (True, 2),
        (True, 1),
    ]
    record.open({1: KEYS[1]}.get)
    one, two, three = record.payloads(event)
    assert one == three == payload
    assert is_closed(two)


def test_an_empty_message_has_nothing_to_seal() -> None:
    record = decode_record(1, written((published(["a"], [0]), [sealed(b"", 1)])))
    ((_, event),) = record.events()
    assert record.payloads(event) == [b""]
    assert not record.sealed


def test_what_cannot_be_read_stays_so_in_another_record() -> None:
    lost = sealed(b"garble", 9, opened=False)
    record = decode_record(1, written((published(["a"], [6]), [lost])))
    ((_, event),) = record.events()
    (found,) = record.payloads(event)
    assert is_closed(found)
    assert found.key == 9


def test_a_record_that_is_written_again_has_another_salt() -> None:
    event = published(["a"], [6])
    one, two = (decode_record(1, written((event, [sealed(b"secret", 1)]))) for _ in range(2))
    assert one.salt != two.salt
    assert bytes(one.stored) != bytes(two.stored)
    assert one.payload == two.payload


def test_every_damaged_byte_is_found() -> None:
    data = written((published(["a"], [6]), [sealed(b"secret", 1)]))
    for at in range(len(data)):
        damaged = bytearray(data)
        damaged[at] ^= 1
        with pytest.raises(Exception, match="record 1") as found:
            decode_record(1, bytes(damaged))
        assert found.type is not AssertionError


def test_nothing_sealed_means_the_same_bytes_as_before() -> None:
    event, pieces = published(["a"], [6]), [b"public"]
    disks = Disk(), Disk()
    for disk, keys in zip(disks, (None, KEYS.get), strict=True):
        made = journal(disk, keys)
        made.append(event, 1, pieces, 6)
        made.flush()
        made.end_turn()
    assert disks[0].records == disks[1].records


def test_a_part_outside_the_payload_area_or_the_order_is_refused() -> None:
    assert sealed_parts([[0, 4, 1], [4, 0, 2]], 4) == {(0, 4): 1, (4, 4): 2}
    for parts in ([[-1, 2, 1]], [[0, 5, 1]], [[2, -1, 1]], [[0, 1, 0]], [[0, 3, 1], [2, 1, 1]]):
        with pytest.raises(ValueError, match="outside"):
            sealed_parts(parts, 4)


@pytest.mark.parametrize(
    "columns",
    [
        [[[0, 1 << 40, 1]], 0, 1],
        [[0], [[1, 1 << 40, 0]], 1],
        [[0], 1, [[1, 1 << 40, 0]]],
        [[0, 1], 1, [1]],
        [[0, 1], [1], 1],
        [[0], 1],
        [0, 1, 1],
        [[[0, 1000, 1], [0, -999, 1]], 1, 1],
        [[[0, 1 << 40, 1], [0, 1 - (1 << 40), 1]], 1, 1],
        [[0], [[0, 1 << 40, 1], [0, 1 - (1 << 40), 1]], 1],
        [[[0, 0, 1], 0], 1, 1],
        [[[0, 1.0, 1]], 1, 1],
        [[0.0], 1, 1],
        [[0], 1, 1.5],
        [[0], 1, [1.5]],
        [[0], 1, True],
    ],
)
def test_wrong_columns_of_sealed_parts_are_refused(columns: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        sealed_parts(parts_in(columns), 1 << 20)


def test_a_list_of_parts_has_integers() -> None:
    assert list(parts_in_list([[0, 5, 1]])) == [[0, 5, 1]]
    for part in ([0, 5, 1.5], [0.0, 5, 1], [0, 5], [0, True, 1], 5):
        with pytest.raises((ValueError, TypeError)):
            list(parts_in_list([part]))


def test_a_record_with_a_wrong_part_is_corrupt() -> None:
    from eventstore.format.records import encode_record

    data = encode_record(
        previous=GENESIS,
        node="n",
        time_ms=1,
        events=[published(["a"], [3])],
        payloads=[b"abc"],
        sealed=[(0, 9, 1)],
        salt=new_salt(),
    )
    with pytest.raises(CorruptLog):
        decode_record(1, data)
