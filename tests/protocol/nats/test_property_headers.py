"""Properties of MQTT 5 as NATS headers: carried ones return unchanged, others are rejected."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nats.aio.client import Client

from protocol.mqtt.message_properties import (
    MessageProperties,
    decode_message_properties,
    encode_message_properties,
)
from protocol.nats.headers import (
    Headers,
    constant_part,
    header_block,
    parse_headers,
    without_message_id,
)
from protocol.nats.property_headers import (
    MAX_PROPERTIES,
    MAX_USER,
    allowed_names,
    expiry_lines,
    property_lines,
    read_properties,
)

texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=30)
names = texts | st.sampled_from(
    [
        "unit",
        "traceparent",
        "Nats-TTL",
        "nats-expected-last-sequence",
        "NATS-Msg-Id",
        "Foldmq-QoS",
        "Foldmq-User-1",
        "Nmqtt-Pub",
        "Content-Type",
        "Status",
        "description",
        "KV-Operation",
        "a:b",
        "a b",
        "",
        "a=b",
        "%41",
    ]
)
values = texts | st.sampled_from(
    ["", " ", " a", "a ", "1\r\nNats-TTL: 1", "100%", "a=b", "é", "\t"]
)
topics = texts.filter(lambda text: text and not set("+#") & set(text))
sets = st.builds(
    MessageProperties,
    st.sampled_from([0, 1]),
    st.none() | st.integers(0, 0xFFFFFFFF),
    st.none() | values,
    st.none() | topics,
    st.none() | st.binary(max_size=40),
    st.lists(st.tuples(names, values), max_size=8).map(tuple),
)


def written(properties: MessageProperties, qos: int = 1, **allowed: str) -> bytes:
    """The headers of a message with some properties."""
    constant = constant_part("a/b", qos, retain=False, client="c", node="n1")
    lines = property_lines(properties, allowed).lines
    if properties.expiry is not None:
        lines += expiry_lines(properties.expiry, ttl=False)
    return header_block(constant, 17 if qos else None, lines)


@given(sets, st.sampled_from([0, 1]))
def test_properties_survive_a_round_trip(properties: MessageProperties, qos: int) -> None:
    found = read_properties(parse_headers(written(properties, qos)), b"text")
    assert found.dropped == 0
    assert found.properties == properties
    assert decode_message_properties(found.block()) == properties
    assert found.block() == encode_message_properties(properties)


@given(sets)
def test_no_property_becomes_a_header_that_nats_obeys(properties: MessageProperties) -> None:
    block = written(properties)
    assert all(0x20 <= byte <= 0x7E for byte in block.replace(b"\r\n", b""))
    fields = parse_headers(block).fields
    lower = [name.lower() for name, _ in fields]
    theirs = [name for name in lower if name.startswith(("nats-", "nmqtt-", "kv-"))]
    assert theirs == ["nmqtt-pub", "nats-msg-id"]
    assert not {"status", "description"} & set(lower)
    assert lower.count("foldmq-qos") == lower.count("foldmq-topic") == 1
    assert lower.count("content-type") <= (properties.content_type is not None)


@given(sets)
async def test_nats_py_reads_them(properties: MessageProperties) -> None:
    block = written(properties)
    theirs = await Client()._process_headers(block)  # of repeated names it has the last one
    assert theirs == dict(parse_headers(block).fields)


def test_the_headers_of_a_message() -> None:
    properties = MessageProperties(
        1,
        30,
        "application/json",
        "reply/ä",
        b"\x00id-7\xff",
        (("unit", "°C"), ("site", "north 1"), ("site", "2"), ("Nats-TTL", "1s"), ("", "")),
    )
    assert property_lines(properties).lines.decode().splitlines() == [
        "Content-Type: application/json",
        "Foldmq-Payload-Format: 1",
        "Foldmq-Response-Topic: reply/%C3%A4",
        "Foldmq-Correlation-Data: %00id-7%FF",
        "Foldmq-User-1: unit=%C2%B0C",
        "site: north 1",
        "site: 2",
        "Foldmq-User-4: Nats-TTL=1s",
        "Foldmq-User-5: =",
    ]
    assert expiry_lines(30, ttl=False) == b"Foldmq-Message-Expiry: 30\r\n"
    assert expiry_lines(30, ttl=True) == b"Foldmq-Message-Expiry: 30\r\nNats-TTL: 30s\r\n"


def test_a_content_type_that_is_no_value_of_a_header() -> None:
    for text in ("text/plain\r\nNats-TTL: 1", "é", "", " a"):
        properties = MessageProperties(content_type=text)
        block = written(properties)
        assert parse_headers(block).get("Content-Type") is None
        assert read_properties(parse_headers(block), b"").properties == properties


def test_allowed_headers_have_the_spelling_of_the_operator() -> None:
    allowed = allowed_names(["Nats-Rollup", "Nats-Msg-Id"])
    user = (("nats-rollup", "sub"), ("NATS-MSG-ID", "x1"), ("Nats-TTL", "1s"), ("Nats-Rollup", "é"))
    made = property_lines(MessageProperties(user=user), allowed)
    assert made.lines.decode().splitlines() == [
        "Nats-Rollup: sub",
        "Nats-Msg-Id: x1",
        "Foldmq-User-3: Nats-TTL=1s",
        "Foldmq-User-4: Nats-Rollup=%C3%A9",
    ]
    assert made.has_message_id
    constant = constant_part("a", 1, retain=False, client="c", node="n")
    block = header_block(without_message_id(constant), None, made.lines)
    assert block.lower().count(b"nats-msg-id") == 1
    assert parse_headers(block).get("Nats-Msg-Id") == "x1"
    assert parse_headers(block).get("Foldmq-Node") == "n"


@pytest.mark.parametrize(
    "name", ["", "a b", "é", "a:b", "x\r\n", "Foldmq-QoS", "nmqtt-pub", "Status", "Content-Type"]
)
def test_headers_that_an_operator_cannot_allow(name: str) -> None:
    with pytest.raises(
        ValueError, match=r"is not the name of a NATS header|is written by foldmq only"
    ):
        allowed_names([name])


# ------------------------------------------------------------------ bounds


def test_only_so_many_user_properties_are_carried_to_nats() -> None:
    user = tuple((f"k{number}", "v") for number in range(100))
    made = property_lines(MessageProperties(user=user))
    assert made.dropped == 100 - MAX_USER
    back = read_properties(parse_headers(b"NATS/1.0\r\n" + made.lines + b"\r\n"), b"")
    assert back.properties.user == user[:MAX_USER]


def test_only_so_many_bytes_are_carried_to_nats() -> None:
    user = (("a", "x" * 30_000), ("b", "é" * 10_000), ("c", "y"))
    made = property_lines(MessageProperties(correlation=b"id", user=user))
    assert made.dropped == 1
    assert len(made.lines) <= MAX_PROPERTIES
    back = read_properties(parse_headers(b"NATS/1.0\r\n" + made.lines + b"\r\n"), b"")
    assert back.properties.user == (user[0], user[2])
    assert back.properties.correlation == b"id"


def read(*lines: bytes, payload: bytes = b"text") -> tuple[MessageProperties, int]:
    headers = parse_headers(b"NATS/1.0\r\n" + b"\r\n".join(lines) + b"\r\n\r\n")
    return read_properties(headers, payload)[:2]


def test_only_so_much_is_taken_from_nats() -> None:
    found, dropped = read(*(b"K%d: v" % number for number in range(90)))
    assert (len(found.user), dropped) == (MAX_USER, 10)
    found, dropped = read(b"A: " + b"x" * 30_000, b"B: " + b"y" * 30_000, b"C: z")
    assert [name for name, _ in found.user] == ["A", "C"]
    assert dropped == 1
    assert (
        len(read_properties(parse_headers(b"NATS/1.0\r\n" + b"K:v\r\n" * 99), b"").block()) < 65_535
    )


# ------------------------------------------------------------------ from NATS


def test_headers_of_nats_clients_are_user_properties_in_their_order() -> None:
    found, dropped = read(b"b:1", b"A:  x y ", "é: ü".encode(), b"b: 2", b"empty:", b"Tab: a\tb")
    assert found.user == (
        ("b", "1"),
        ("A", "x y"),
        ("é", "ü"),
        ("b", "2"),
        ("empty", ""),
        ("Tab", "a\tb"),
    )
    assert dropped == 0


def test_headers_of_nats_itself_stay_there_but_for_the_errors_of_services() -> None:
    found, dropped = read(
        b"Nats-Expected-Stream: X",
        b"nats-msg-id: 1",
        b"Nmqtt-Pub:1",
        b"Foldmq-Topic: a",
        b"Foldmq-Whatever: a",
        b"KV-Operation: DEL",
        b"Status: 503",
        b"Nats-Service-Error: no such lamp",
        b"Nats-Service-Error-Code: 404",
    )
    assert found == MessageProperties(
        user=(("Nats-Service-Error", "no such lamp"), ("Nats-Service-Error-Code", "404"))
    )
    assert dropped == 0


@pytest.mark.parametrize(
    "line",
    [
        b"X: \xff\xfe",
        b"\xff: x",
        b"X: a\x00b",
        b"X: a\x1b[31m",
        b"X: a\rb",
        "X: a\x85b".encode(),
        b"Foldmq-User-1: no equals sign",
        b"Foldmq-User-1: a=%00",
        b"Foldmq-User-1: a=%FF",
        b"Foldmq-User-x: a=b",
        b"Foldmq-User-: a=b",
        b"Foldmq-Content-Type: %FF",
        b"Content-Type: \xff",
        b"Content-Type: a\x07",
        b"Foldmq-Response-Topic: a/%23",
        b"Foldmq-Response-Topic: ",
        b"Foldmq-Response-Topic: %00",
        b"Foldmq-Response-Topic: \xff",
        b"Foldmq-Message-Expiry: -1",
        b"Foldmq-Message-Expiry: 1.5",
        b"Foldmq-Message-Expiry: 4294967296",
        "Foldmq-Message-Expiry: ٣".encode(),
        b"Foldmq-Payload-Format: 2",
        b"Foldmq-Payload-Format: yes",
    ],
)
def test_invalid_headers_are_omitted_and_counted(line: bytes) -> None:
    assert read(line) == (MessageProperties(), 1)


def test_only_valid_utf_8_is_text() -> None:
    assert read(b"Foldmq-Payload-Format: 1", payload=b"\xff") == (MessageProperties(), 1)
    assert read(b"Foldmq-Payload-Format: 1", payload="é".encode())[0].payload_format == 1


@pytest.mark.parametrize(
    ("ttl", "seconds"),
    [
        (b"30", 30),
        (b"30s", 30),
        (b"1h30m5s", 5405),
        (b"2m", 120),
        (b"never", None),
        (b"500ms", None),
        (b"", None),
        (b"0", None),
        (b"9999999h", 0xFFFFFFFF),
    ],
)
def test_the_ttl_of_a_message_is_its_expiry(ttl: bytes, seconds: int | None) -> None:
    assert read(b"Nats-TTL: " + ttl)[0].expiry == seconds
    assert read(b"Nats-TTL: " + ttl, b"Foldmq-Message-Expiry: 7")[0].expiry == 7


def test_the_first_of_two_counts_in_any_case() -> None:
    found, _ = read(
        b"content-type: a", b"Content-Type: b", b"FOLDMQ-CORRELATION-DATA: 1",
        b"Foldmq-Correlation-Data: 2",
    )  # fmt: skip
    assert (found.content_type, found.correlation) == ("a", b"1")


@given(
    st.lists(
        st.sampled_from(
            [
                b"Foldmq-User-1",
                b"Foldmq-Message-Expiry",
                b"Content-Type",
                b"Nats-TTL",
                b"X",
                b"\xff",
            ]
        )
        | st.binary(max_size=10)
    ),
    st.lists(st.binary(max_size=20) | st.sampled_from([b"%", b"%zz", b"a=%ff", b"=", b"%00"])),
    st.binary(max_size=5),
)
def test_any_headers_make_a_legal_block(
    keys: list[bytes], said: list[bytes], payload: bytes
) -> None:
    lines = [b"%b:%b" % pair for pair in zip(keys, said, strict=False)]
    found = read_properties(parse_headers(b"NATS/1.0\r\n" + b"\r\n".join(lines)), payload)
    assert decode_message_properties(found.block()) == found.properties
    assert isinstance(parse_headers(b""), Headers)
