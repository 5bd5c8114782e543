"""The header with which a node passes a client on: read as written, by the right leader."""

import contextlib
import dataclasses

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actors.transports.proxy_protocol import encode_header
from cluster.client_header import (
    NONCE_SIZE,
    BadClientHeader,
    ForwardedClient,
    decode_client,
    encode_client,
)

KEY = b"k" * 32
NONCE = bytes(range(NONCE_SIZE))
CLIENT = ForwardedClient(
    ("192.0.2.7", 56_324),
    "x2p5ae22",
    "tls://0.0.0.0:8883",
    certified="CN=pump-7,O=Plant",
    anonymous=True,
    version="TLSv1.3",
    cipher="TLS_AES_256_GCM_SHA384",
    max_packet_size=1024,
    connect_timeout=7.5,
    publish_rate=10.0,
)
peers = st.none() | st.tuples(
    st.ip_addresses(v=4).map(str) | st.sampled_from(["2001:db8::1", "::1"]), st.integers(0, 65_535)
)


@given(peers, st.text(max_size=40), st.none() | st.text(max_size=200), st.booleans())
def test_a_header_is_read_as_it_was_written(
    peer: tuple[str, int] | None, listener: str, certified: str | None, anonymous: bool
) -> None:
    client = ForwardedClient(peer, "n1", listener, certified=certified, anonymous=anonymous)
    header = encode_client(client, NONCE, KEY)
    assert decode_client(header + b"CONNECT", NONCE, KEY) == (client, len(header))


def test_an_incomplete_header_is_awaited() -> None:
    header = encode_client(CLIENT, NONCE, KEY)
    for size in range(len(header)):
        assert decode_client(header[:size], NONCE, KEY) is None


@pytest.mark.parametrize(
    ("nonce", "key"), [(NONCE[::-1], KEY), (NONCE, KEY[:-1] + b"x"), (NONCE, b"")]
)
def test_a_header_for_another_connection_or_with_another_key_is_refused(
    nonce: bytes, key: bytes
) -> None:
    with pytest.raises(BadClientHeader, match="does not have the key"):
        decode_client(encode_client(CLIENT, NONCE, KEY), nonce, key)


@given(st.data())
def test_a_changed_header_is_rejected(data: st.DataObject) -> None:
    header = bytearray(encode_client(CLIENT, NONCE, KEY))
    at = data.draw(st.integers(0, len(header) - 1))
    header[at] ^= data.draw(st.integers(1, 255))
    with contextlib.suppress(BadClientHeader):
        assert decode_client(bytes(header), NONCE, KEY) is None  # it seems to be longer


@pytest.mark.parametrize(
    "header",
    [
        b"CONNECT",
        b"PROXY TCP4 192.0.2.7 198.51.100.1 56324 1883\r\n",
        encode_header(("192.0.2.7", 1)),
        encode_header(("192.0.2.7", 1), [(0xE1, bytes(32)), (0xE0, b"{}")]),
        encode_header(None, [(0xE0, b"{}")]),
    ],
)
def test_the_header_of_a_proxy_is_not_that_of_a_node(header: bytes) -> None:
    with pytest.raises(BadClientHeader):
        decode_client(header, NONCE, KEY)


def described(**changes: object) -> bytes:
    """A header whose description has other values, with the right HMAC."""
    from cluster import client_header

    said = dataclasses.asdict(CLIENT) | changes
    del said["peer"]
    unsigned = encode_header(None, [(0xE0, orjson.dumps(said)), (0xE1, bytes(32))])[:-32]
    return unsigned + client_header._digest(unsigned, NONCE, KEY)


@pytest.mark.parametrize("changes", [{"node": 1}, {"max_packet_size": "many"}, {"certified": 0}])
def test_a_description_of_the_wrong_kind_is_refused(changes: dict[str, object]) -> None:
    with pytest.raises(BadClientHeader, match="not valid"):
        decode_client(described(**changes), NONCE, KEY)


def test_additions_of_a_later_version_are_ignored() -> None:
    found = decode_client(described(partition=3), NONCE, KEY)
    assert found is not None
    assert found[0] == dataclasses.replace(CLIENT, peer=None)


def test_a_description_that_is_too_long_is_refused_where_it_is_made() -> None:
    with pytest.raises(BadClientHeader, match="longer than 4096 bytes"):
        encode_client(dataclasses.replace(CLIENT, certified="x" * 4096), NONCE, KEY)
