"""The CONNACK is found wherever the bytes of the leader are cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.edge_client import ConnackWatch

ACCEPTED = b"\x20\x02\x00\x00"
REFUSED = b"\x20\x02\x00\x05"
ACCEPTED_V5 = b"\x20\x83\x01\x01\x00\x80\x01" + bytes(128)
AUTH = b"\xf0\x82\x01\x18\x7f" + b"\x20" * 128
SHORT_AUTH = b"\xf0\x00"


@pytest.mark.parametrize(
    ("sent", "accepted"),
    [
        (ACCEPTED, True),
        (REFUSED, False),
        (ACCEPTED_V5, True),
        (AUTH + ACCEPTED_V5, True),
        (AUTH + SHORT_AUTH + AUTH + REFUSED, False),
        (b"\xff" * 8, False),
    ],
)
@given(cuts=st.lists(st.integers(1, 40), max_size=40))
def test_the_connack_is_found(sent: bytes, accepted: bool, cuts: list[int]) -> None:
    watch, at = ConnackWatch(), 0
    found = None
    for size in (*cuts, len(sent)):
        if found is None and at < len(sent):
            found = watch.sees(sent[at : at + size])
            at += size
    assert found is accepted


def test_nothing_is_known_before_it_is_there() -> None:
    watch = ConnackWatch()
    for byte in AUTH + ACCEPTED[:-1]:
        assert watch.sees(bytes([byte])) is None
    assert watch.sees(ACCEPTED[-1:]) is True
