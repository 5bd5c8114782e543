"""NATS headers: encoded ones read by nats-py, and arbitrary ones parsed."""

from hashlib import sha256
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from protocol.nats.headers import (
    MAX_BYTES,
    MAX_HEADERS,
    Headers,
    constant_part,
    encode_value,
    header_block,
    parse_headers,
)

legal = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)


@given(legal)
def test_values_come_back_and_are_harmless(text: str) -> None:
    encoded = encode_value(text)
    assert all(0x21 <= byte <= 0x7E for byte in encoded)
    assert unquote(encoded.decode(), errors="strict") == text


@pytest.mark.parametrize(
    ("text", "encoded"),
    [
        ("", b""),
        ("plant/1", b"plant/1"),
        ("a b", b"a%20b"),
        ("100%", b"100%25"),
        ("a\r\nEvil: 1", b"a%0D%0AEvil:%201"),
        ("é", b"%C3%A9"),
        ("\x7f\0", b"%7F%00"),
    ],
)
def test_value(text: str, encoded: bytes) -> None:
    assert encode_value(text) == encoded


def test_block_at_qos_0() -> None:
    constant = constant_part("a b/c", 0, retain=False, client="x", node="n1")
    assert header_block(constant) == (
        b"NATS/1.0\r\nNmqtt-Pub:0\r\nFoldmq-Topic: a%20b/c\r\nFoldmq-QoS: 0\r\n"
        b"Foldmq-Client: x\r\nFoldmq-Node: n1\r\n\r\n"
    )


def test_block_at_qos_1_and_2() -> None:
    constant = constant_part("a", 2, retain=True, client="", node="n 1")
    assert header_block(constant, 1234) == (
        b"NATS/1.0\r\nNmqtt-Pub:2\r\nFoldmq-Topic: a\r\nFoldmq-QoS: 2\r\n"
        b"Foldmq-Client: \r\nFoldmq-Node: n%201\r\nFoldmq-Retain: 1\r\n"
        b"Nats-Msg-Id: n%201-1234\r\n\r\n"
    )


@pytest.mark.parametrize("letter", ["c", "é"])
def test_a_long_client_identifier_is_a_digest(letter: str) -> None:
    longest = letter * (256 // len(letter.encode()))
    block = header_block(constant_part("a", 0, retain=False, client=longest, node="n"))
    assert unquote(parse_headers(block).get("Foldmq-Client") or "") == longest
    assert parse_headers(block).get("Foldmq-Client-Digest") is None
    client = longest + letter
    block = header_block(constant_part("a", 0, retain=False, client=client, node="n"))
    assert parse_headers(block).get("Foldmq-Client") is None
    assert parse_headers(block).get("Foldmq-Client-Digest") == sha256(client.encode()).hexdigest()


@given(legal, st.sampled_from([0, 1, 2]), st.booleans(), legal, legal, st.integers(0, 1 << 62))
async def test_written_headers_can_be_read(
    topic: str, qos: int, retain: bool, client: str, node: str, position: int
) -> None:
    constant = constant_part(topic, qos, retain=retain, client=client, node=node)
    block = header_block(constant, position if qos else None)
    wanted = {
        "Nmqtt-Pub": str(qos),
        "Foldmq-Topic": topic,
        "Foldmq-QoS": str(qos),
        "Foldmq-Client": client,
        "Foldmq-Node": node,
    }
    if retain:
        wanted["Foldmq-Retain"] = "1"
    if qos:
        wanted["Nats-Msg-Id"] = f"{node}-{position}"
    ours = parse_headers(block)
    assert len(ours) == len(wanted)
    for key, value in wanted.items():
        there = ours.get(key)
        assert there is not None
        assert unquote(there) == value
    assert ours.status == ""
    theirs = await Client()._process_headers(block)
    assert theirs is not None
    assert {key: unquote(value) for key, value in theirs.items()} == wanted


def test_keys_are_found_in_any_case_and_the_first_one_counts() -> None:
    headers = parse_headers(b"NATS/1.0\r\nfoldmq-qos:1\r\nFOLDMQ-QOS: 2\r\nX:  y z \r\n\r\n")
    assert headers.get("Foldmq-QoS") == "1"
    assert headers.get("x") == "y z"
    assert headers.get("Foldmq-Retain") is None
    assert len(headers) == 2


@pytest.mark.parametrize(
    ("block", "status"),
    [
        (b"NATS/1.0 503\r\n\r\n", "503"),
        (b"NATS/1.0 404 No Messages\r\nA: b\r\n\r\n", "404"),
        (b"NATS/1.0  100 Idle\r\n\r\n", "100"),
        (b"NATS/1.0\r\n\r\n", ""),
        (b"NATS/1.0", ""),
    ],
)
def test_status(block: bytes, status: str) -> None:
    assert parse_headers(block).status == status


@pytest.mark.parametrize(
    "block", [b"", b"\r\n", b"HTTP/1.1 200\r\nA: b\r\n\r\n", b"NATS/1.05\r\nA: b"]
)
def test_invalid_blocks_have_no_headers(block: bytes) -> None:
    headers = parse_headers(block)
    assert len(headers) == 0
    assert headers.status == ""


def test_odd_lines_are_passed_over() -> None:
    headers = parse_headers(
        b"NATS/1.0\r\nno colon\r\n: no key\r\n\r\nA:1\nB:\xff\xfe\x00\r\n\tC: 3\r\nD:e:f"
    )
    assert headers.get("A") == "1"
    assert headers.get("B") == "\ufffd\ufffd\0"
    assert headers.get("C") == "3"
    assert headers.get("D") == "e:f"
    assert len(headers) == 4


def test_only_so_much_is_read() -> None:
    many = b"NATS/1.0\r\n" + b"".join(b"K%d: v\r\n" % number for number in range(10_000))
    assert len(parse_headers(many)) == MAX_HEADERS
    assert parse_headers(many).get("K99") == "v"
    long = b"NATS/1.0\r\nA: 1\r\nB: " + b"x" * MAX_BYTES + b"\r\nC: 1\r\n\r\n"
    headers = parse_headers(long)
    assert headers.get("A") == "1"
    # A value of which the end was not read would be another value
    assert headers.get("B") is None
    assert headers.get("C") is None
    assert len(parse_headers(b"x" * (1 << 20))) == 0
    assert len(parse_headers(b"NATS/1.0\r\n" + b"\n" * (1 << 20))) == 0


@given(
    st.binary(max_size=200)
    | st.lists(
        st.sampled_from(
            [b"NATS/1.0", b"\r\n", b"\n", b"\r", b":", b" ", b"A", b"503", b"\xff", b"\0"]
        )
    ).map(b"".join)
)
def test_any_bytes_can_be_read(block: bytes) -> None:
    for headers in (parse_headers(block), parse_headers(b"NATS/1.0\r\n" + block)):
        assert isinstance(headers, Headers)
        assert headers.get("A") is None or isinstance(headers.get("a"), str)
        assert len(headers) <= MAX_HEADERS
