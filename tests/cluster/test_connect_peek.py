"""The client identifier in the first bytes of a connection."""

import pytest
from harness import packets as p
from harness.mqtt5_packets import connect as connect_v5
from hypothesis import given
from hypothesis import strategies as st

from cluster.connect_peek import Peeked, client_id_in


def test_it_is_found_in_every_version() -> None:
    assert client_id_in(p.connect("c1")) == "c1"
    assert client_id_in(p.connect("ü", protocol="MQIsdp", level=3)) == "ü"
    assert client_id_in(connect_v5("c5")) == "c5"
    assert client_id_in(p.connect("")) == ""


@pytest.mark.parametrize("packet", [p.connect("client", username="u"), connect_v5("client")])
def test_no_part_of_a_connect_has_another_one(packet: bytes) -> None:
    found = [client_id_in(packet[:size]) for size in range(len(packet) + 1)]
    assert set(found) == {Peeked.INCOMPLETE, "client"}
    assert found.index("client") == found.count(Peeked.INCOMPLETE)


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n", p.pingreq(), b"\x10\xff\xff\xff\xff\xff", b"\x16\x03\x01"]
)
def test_other_bytes_have_none(data: bytes) -> None:
    assert client_id_in(data) is Peeked.NONE


@pytest.mark.parametrize("packet", [p.connect("client"), connect_v5("client")])
def test_a_whole_packet_that_is_too_short_has_none(packet: bytes) -> None:
    """The broker refuses it at once instead of waiting for the rest."""
    for size in range(len(packet) - 2):
        assert client_id_in(bytes([0x10, size]) + packet[2 : 2 + size]) is Peeked.NONE
        assert client_id_in(bytes([0x10, size]) + packet[2:]) is Peeked.NONE


@given(st.binary(max_size=64))
def test_arbitrary_bytes_raise_nothing(data: bytes) -> None:
    client_id_in(b"\x10" + data)
    client_id_in(data)
