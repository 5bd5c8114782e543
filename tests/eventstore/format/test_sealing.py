"""Sealed contents: every key is needed, at their place only, and nothing plain is left."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventstore.format.sealing import (
    NOTHING_SEALED,
    KeyMissing,
    NotSealedHere,
    RecordSeal,
    SealColumns,
    hidden_of,
    key_check,
    keys_of,
    new_salt,
    seal_columns,
    split_block,
    stored_sizes,
)

SALT = bytes(range(16))
RING = {number: bytes([number]) * 32 for number in range(1, 6)}
EXPIRY = b"\x02\x00\x00\x00\x3c"
KEYS = st.lists(st.integers(1, 5), max_size=3, unique=True).map(lambda keys: tuple(sorted(keys)))


KNOWN_ONE = "c6c5f6eb8432ddd54c1348f39adfc36d2bd2ae6b7c85eae8b8485158"
KNOWN_TWO = "05870ca8fdd5f01ebf3512ee9521d315ab1330cbc1"
KNOWN_CHECK = "bb71d623fecf72cbabbb77b1395c1984c5ea06549b486f68a12fbeb7ec116246"


def seal() -> RecordSeal:
    return RecordSeal(SALT, RING.get)


def test_a_known_message() -> None:
    """The bytes never change: a later foldmq must open them."""
    made = seal().seal(3, (1,), b"\x26\x00\x01a\x00\x01b", b"hello")
    assert made.hex() == KNOWN_ONE
    assert seal().open(3, (1,), 7, made) == (b"\x26\x00\x01a\x00\x01b", b"hello")
    several = seal().seal(0, (1, 4), b"", b"hello")
    assert several.hex() == KNOWN_TWO
    assert key_check(RING[1]) == KNOWN_CHECK


def test_every_key_is_needed_at_this_place_in_this_record() -> None:
    stored = seal().seal(3, (1, 2), b"", b"hello")
    for keys, index, salt in (
        ((1,), 3, SALT),
        ((2,), 3, SALT),
        ((1, 3), 3, SALT),
        ((2, 1), 3, SALT),
        ((1, 2), 4, SALT),
        ((1, 2), 3, bytes(16)),
    ):
        with pytest.raises(NotSealedHere):
            RecordSeal(salt, RING.get).open(index, keys, 0, stored)
    for missing in (1, 2):
        ring = {number: key for number, key in RING.items() if number != missing}
        with pytest.raises(KeyMissing, match=f"key {missing} does not exist"):
            RecordSeal(SALT, ring.get).open(3, (1, 2), 0, stored)


def test_any_changed_byte_is_found() -> None:
    stored = seal().seal(0, (1,), b"", b"hello")
    for at, bit in itertools.product(range(len(stored)), (1, 128)):
        changed = stored[:at] + bytes([stored[at] ^ bit]) + stored[at + 1 :]
        with pytest.raises(NotSealedHere):
            seal().open(0, (1,), 0, changed)
    for cut in range(len(stored)):
        with pytest.raises(NotSealedHere):
            seal().open(0, (1,), 0, stored[:cut])


def test_a_record_that_is_encoded_again_has_other_bytes() -> None:
    first, second = (RecordSeal(new_salt(), RING.get).seal(0, (1,), b"", b"x") for _ in range(2))
    assert first != second


@pytest.mark.parametrize(
    ("block", "split"),
    [
        (b"", (b"", b"")),
        (EXPIRY, (EXPIRY, b"")),
        (EXPIRY + b"\x01\x01", (EXPIRY, b"\x01\x01")),
        (b"\x01\x01", (b"", b"\x01\x01")),
    ],
)
def test_only_the_expiry_stays_readable(block: bytes, split: tuple[bytes, bytes]) -> None:
    assert split_block(block) == split


@pytest.mark.parametrize(
    ("keys", "hidden", "columns"),
    [
        ([(), ()], [0, 0], NOTHING_SEALED),
        ([(7,), (7,)], [0, 0], SealColumns([7], [], 0)),
        ([(7,), (), (7, 9)], [3, 0, 3], SealColumns([7, [7, 9]], [1, 0, 2], [3, 0, 3])),
    ],
)
def test_columns(keys: list[tuple[int, ...]], hidden: list[int], columns: SealColumns) -> None:
    assert seal_columns(keys, hidden) == columns


MESSAGES = st.lists(st.tuples(KEYS, st.binary(max_size=20), st.binary(max_size=20)), max_size=8)


@given(MESSAGES)
def test_messages_of_a_record(messages: list[tuple[tuple[int, ...], bytes, bytes]]) -> None:
    keys = [key for key, _, _ in messages]
    hidden = [len(properties) if key else 0 for key, properties, _ in messages]
    columns = seal_columns(keys, hidden)
    assert keys_of(columns, len(keys)) == keys
    if columns.keys:
        assert hidden_of(columns, len(keys)) == hidden
    writer, reader = seal(), seal()
    stored = [
        writer.seal(at, key, properties, payload)
        for at, (key, properties, payload) in enumerate(messages)
    ]
    assert [*map(len, stored)] == stored_sizes([len(one[2]) for one in messages], columns)
    for at, (key, properties, payload) in enumerate(messages):
        opened = reader.open(at, keys_of(columns, len(keys))[at], hidden[at], stored[at])
        assert opened == (properties if key else b"", payload)
        if key and len(payload) > 4:
            assert payload not in stored[at]
