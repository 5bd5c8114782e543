"""Sparkplug: the topics of certificates, and the time of a death certificate."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt.sparkplug import (
    MAX_DEATH,
    MAX_FIELDS,
    certificate_topic,
    is_death,
    with_timestamp,
)

NOW = 1_700_000_000_123
STAMP = b"\x08\xfb\xd0\x95\xff\xbc\x31"


@pytest.mark.parametrize(
    "topic", ["spBv1.0/g/NBIRTH/n", "spBv1.0/g g/DBIRTH/n.1/d", "spBv1.0/é/NBIRTH/$"]
)
def test_births_have_a_certificate(topic: str) -> None:
    assert certificate_topic(topic) == f"$sparkplug/certificates/{topic}"
    assert not is_death(topic)


@pytest.mark.parametrize("topic", ["spBv1.0/g/NDEATH/n", "spBv1.0/g/DDEATH/n/d"])
def test_deaths(topic: str) -> None:
    assert is_death(topic)
    assert certificate_topic(topic) is None


@pytest.mark.parametrize(
    "topic",
    [
        *(
            "",
            "spBv1.0",
            "spBv1.0/",
            "spBv1.0/g/NBIRTH",
            "spBv1.0/g/NBIRTH/n/d",
            "spBv1.0/g/DBIRTH/n",
        ),
        *(
            "spBv1.0/g/DBIRTH/n/d/e",
            "spBv1.0/g/NDEATH/n/d",
            "spBv1.0/g/DDEATH/n",
            "spBv1.0/g/NDATA/n",
        ),
        *("spBv1.0/g/nbirth/n", "spbv1.0/g/NBIRTH/n", "spAv1.0/g/NBIRTH/n", "/spBv1.0/g/NBIRTH/n"),
        *("spBv1.0//NBIRTH/n", "spBv1.0/g/NBIRTH/", "spBv1.0/g/DBIRTH//d", "spBv1.0/g/DDEATH/n/"),
        *(
            "spBv1.0/STATE/h",
            "STATE/h",
            "spBv1.0/g/NCMD/n",
            "$sparkplug/certificates/spBv1.0/g/NBIRTH/n",
        ),
    ],
)
def test_other_topics_are_neither(topic: str) -> None:
    assert certificate_topic(topic) is None
    assert not is_death(topic)


def test_no_certificate_has_a_topic_that_is_too_long() -> None:
    longest = "spBv1.0/g/NBIRTH/" + "n" * (65_535 - 24 - 17)
    assert len(certificate_topic(longest) or "") == 65_535
    assert certificate_topic(longest + "n") is None


@pytest.mark.parametrize(
    ("payload", "stamped"),
    [
        (b"\x08\x7b\x10\x05", STAMP + b"\x10\x05"),
        (b"\x10\x05\x08\x7b\x18\x01", b"\x10\x05" + STAMP + b"\x18\x01"),
        (b"\x10\x05", STAMP + b"\x10\x05"),
        # In other spellings: a tag and a value with more bytes than they need
        (b"\x88\x00\xff\x80\x00\x10\x05", STAMP + b"\x10\x05"),
        # Readers take the last one
        (b"\x08\x01\x10\x05\x08\x02", STAMP + b"\x10\x05" + STAMP),
        # A metric that has a field 1 of its own, a text, a fixed32 and a fixed64
        (
            b"\x12\x04\x08\x01\x10\x02\x22\x03\x08\x01a\x2d1234\x3112345678\x08\x01",
            b"\x12\x04\x08\x01\x10\x02\x22\x03\x08\x01a\x2d1234\x3112345678" + STAMP,
        ),
    ],
)
def test_time_of_a_death(payload: bytes, stamped: bytes) -> None:
    assert with_timestamp(payload, NOW) == stamped


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff\xff\xff",
        b"OFFLINE",
        b'{"timestamp": 1}',
        b"\x08",
        b"\x08\x80",
        b"\x08\x01\x10",
        b"\x08\x01\x12\x05abc",
        b"\x08\x01\x2d12",
        b"\x08\x01\x31123",
        b"\x00\x01",
        b"\x0a\x01a",
        b"\x0b\x0c",
        b"\x08" + b"\xff" * 9 + b"\x02",
        b"\x08" + b"\x80" * 10 + b"\x01",
        b"\x08\x01\x12" + b"\xff" * 9 + b"\x01",
        b"\x08\x01\x12\xff\xff\x03" + b"x" * MAX_DEATH,
    ],
)
def test_other_topics_are_unchanged(payload: bytes) -> None:
    assert with_timestamp(payload, NOW) == payload


def varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes([*data, value])


fields = st.one_of(
    st.tuples(st.integers(2, 1000), st.integers(0, (1 << 64) - 1)).map(
        lambda field: varint(field[0] << 3) + varint(field[1])
    ),
    st.tuples(st.integers(2, 1000), st.binary(max_size=200)).map(
        lambda field: varint(field[0] << 3 | 2) + varint(len(field[1])) + field[1]
    ),
    st.tuples(st.integers(2, 1000), st.binary(min_size=8, max_size=8)).map(
        lambda field: varint(field[0] << 3 | 1) + field[1]
    ),
    st.tuples(st.integers(2, 1000), st.binary(min_size=4, max_size=4)).map(
        lambda field: varint(field[0] << 3 | 5) + field[1]
    ),
)
field_lists = st.lists(fields, max_size=6).map(b"".join)
times = st.integers(0, (1 << 64) - 1)


@given(field_lists, field_lists, times, times)
def test_only_the_time_changes(before: bytes, after: bytes, old: int, new: int) -> None:
    payload = before + b"\x08" + varint(old) + after
    assert with_timestamp(payload, new) == before + b"\x08" + varint(new) + after


@given(field_lists.filter(bool), times)
def test_a_missing_time_comes_first(payload: bytes, new: int) -> None:
    assert with_timestamp(payload, new) == b"\x08" + varint(new) + payload


@given(st.binary(max_size=100), st.integers())
def test_any_bytes_can_be_given(payload: bytes, ms: int) -> None:
    once = with_timestamp(payload, ms)
    assert with_timestamp(once, ms) == once
    assert with_timestamp(once, ms + 1) == with_timestamp(payload, ms + 1)


def test_many_fields() -> None:
    payload = b"\x10\x05" * MAX_FIELDS
    assert with_timestamp(payload, NOW) == STAMP + payload
    # A client must not make the broker read for long
    payload += b"\x10\x05"
    assert with_timestamp(payload, NOW) == payload
