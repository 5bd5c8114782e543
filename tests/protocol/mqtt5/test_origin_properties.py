"""The origin of a message in its properties."""

import pytest

from protocol.mqtt.message_properties import decode_message_properties
from protocol.mqtt.origin_properties import (
    Origin,
    log_of,
    log_property,
    split_origin,
    with_origin,
    without_origin,
)
from protocol.mqtt.property_codec import encode_property
from protocol.mqtt.property_table import USER_PROPERTY

ORIGIN = Origin(12, 11, 1_764_505_323_123)
OTHER = encode_property(USER_PROPERTY, ("a", "b"))


@pytest.mark.parametrize("block", [b"", OTHER, with_origin(b"", Origin(1, 1, 1))])
def test_the_last_origin_is_split_off(block: bytes) -> None:
    whole = with_origin(block, ORIGIN)
    assert decode_message_properties(whole).user[-1] == ("foldmq-origin", "12 11 1764505323123")
    assert split_origin(whole) == (ORIGIN, block)


@pytest.mark.parametrize(
    "block",
    [
        b"",
        OTHER,
        with_origin(b"", ORIGIN) + OTHER,
        encode_property(USER_PROPERTY, ("foldmq-origin", "12 11")),
        encode_property(USER_PROPERTY, ("foldmq-origin", "1 2 x")),
        encode_property(USER_PROPERTY, ("foldmq-origin", "1" * 20 + " 2 3")),
        with_origin(b"", Origin(1, 1, 1 << 63)),
        with_origin(b"", Origin(1, 1 << 63, 1)),
        with_origin(b"", Origin(1 << 63, 1, 1)),
    ],
)
def test_other_properties_stay(block: bytes) -> None:
    assert split_origin(block) == (None, block)


def test_a_log_is_named() -> None:
    assert log_of([("x", "y"), log_property("n-p1", 12)]) == ("n-p1", 12)
    for value in ("n", "n x", "n 1 2", "n\n1", "/ 1", f"n {1 << 63}"):
        assert log_of([("foldmq-log", value)]) is None
    assert log_of(()) is None


@pytest.mark.parametrize("block", [b"", OTHER, with_origin(b"", ORIGIN) + OTHER])
def test_origins_at_the_end_that_a_client_wrote_are_left_out(block: bytes) -> None:
    assert without_origin(block) == block
    assert without_origin(with_origin(with_origin(block, ORIGIN), ORIGIN)) == block
