"""Every property in every packet: allowed or not, twice, cut off, with values out of range."""

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt import message_properties, property_codec
from protocol.mqtt.message_properties import (
    MessageProperties,
    decode_message_properties,
    expiry_of,
    is_payload_format_broken,
    read_publish_properties,
    split_properties,
)
from protocol.mqtt.packets import PacketType
from protocol.mqtt.property_codec import (
    MAX_PROPERTIES,
    MAX_PROPERTY_BYTES,
    Value,
    decode_properties,
    encode_properties,
    encode_property,
    find_properties,
    read_variable,
    with_length,
)
from protocol.mqtt.property_table import (
    FROM_CLIENTS,
    FROM_SERVERS,
    PLACES,
    PROPERTIES,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
    USER_PROPERTY,
    WILL,
    Kind,
    Property,
    PropertyCarrier,
)
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.reason_codes import ReasonCode

STANDARD = {
    # Table 2-4 of the standard: C CONNECT, K CONNACK, P PUBLISH, W will, 4 5 6 7 PUBACK to PUBCOMP,
    # S SUBSCRIBE, s SUBACK, U UNSUBSCRIBE, u UNSUBACK, D DISCONNECT, A AUTH
    0x01: "PW",
    0x02: "PW",
    0x03: "PW",
    0x08: "PW",
    0x09: "PW",
    0x0B: "PS",
    0x11: "CKD",
    0x12: "K",
    0x13: "K",
    0x15: "CKA",
    0x16: "CKA",
    0x17: "C",
    0x18: "W",
    0x19: "C",
    0x1A: "K",
    0x1C: "KD",
    0x1F: "K4567suDA",
    0x21: "CK",
    0x22: "CK",
    0x23: "P",
    0x24: "K",
    0x25: "K",
    0x26: "CKPW4567SsUuDA",
    0x27: "CK",
    0x28: "K",
    0x29: "K",
    0x2A: "K",
}
LETTERS: dict[str, PropertyCarrier] = {
    "W": WILL,
    "C": PacketType.CONNECT,
    "K": PacketType.CONNACK,
    "P": PacketType.PUBLISH,
    "4": PacketType.PUBACK,
    "5": PacketType.PUBREC,
    "6": PacketType.PUBREL,
    "7": PacketType.PUBCOMP,
    "S": PacketType.SUBSCRIBE,
    "s": PacketType.SUBACK,
    "U": PacketType.UNSUBSCRIBE,
    "u": PacketType.UNSUBACK,
    "D": PacketType.DISCONNECT,
    "A": PacketType.AUTH,
}
SENT_BY_CLIENTS = [
    WILL,
    PacketType.CONNECT,
    PacketType.PUBLISH,
    PacketType.PUBACK,
    PacketType.PUBREC,
    PacketType.PUBREL,
    PacketType.PUBCOMP,
    PacketType.SUBSCRIBE,
    PacketType.UNSUBSCRIBE,
    PacketType.DISCONNECT,
    PacketType.AUTH,
]
VALUES: dict[Kind, Value] = {
    Kind.BYTE: 1,
    Kind.TWO_BYTES: 258,
    Kind.FOUR_BYTES: 0x01020304,
    Kind.VARIABLE: 300,
    Kind.TEXT: "é/x",
    Kind.BINARY: b"\0\xff",
    Kind.PAIR: ("k", "v"),
}
ALLOWED = [(one, place) for place in SENT_BY_CLIENTS for one in FROM_CLIENTS[place].values()]
NOT_ALLOWED = [
    (one, place)
    for one, place in product(PROPERTIES.values(), SENT_BY_CLIENTS)
    if one.identifier not in FROM_CLIENTS[place]
]


def label(value: object) -> str:
    if isinstance(value, Property):
        return value.name.replace(" ", "-")
    return property_codec.place_name(value) if isinstance(value, int) else str(value)


def read(
    raw: bytes, place: PropertyCarrier
) -> tuple[dict[int, Value], tuple[tuple[str, str], ...]]:
    return decode_properties(raw, 0, len(raw), FROM_CLIENTS[place], place)


def refused(raw: bytes, place: PropertyCarrier) -> ProtocolError:
    with pytest.raises(ProtocolError) as caught:
        read(raw, place)
    return caught.value


def test_the_table_is_that_of_the_standard() -> None:
    assert set(PROPERTIES) == set(STANDARD)
    for identifier, letters in STANDARD.items():
        places = {LETTERS[letter] for letter in letters}
        one = PROPERTIES[identifier]
        assert one.from_clients | one.from_servers == places, one.name
    assert [one.name for one in PROPERTIES.values() if one.repeats] == ["User Property"]
    assert FROM_CLIENTS[PacketType.PINGREQ] == FROM_SERVERS[PacketType.PINGRESP] == {}
    assert set(PLACES) == {WILL, *PacketType}


@pytest.mark.parametrize(("one", "place"), ALLOWED, ids=label)
def test_allowed(one: Property, place: PropertyCarrier) -> None:
    value = VALUES[one.kind]
    values, user = read(encode_property(one.identifier, value), place)
    assert (values, user) == (({}, (value,)) if one.repeats else ({one.identifier: value}, ()))


@pytest.mark.parametrize(("one", "place"), NOT_ALLOWED, ids=label)
def test_in_a_packet_where_it_does_not_belong(one: Property, place: PropertyCarrier) -> None:
    error = refused(encode_property(one.identifier, VALUES[one.kind]), place)
    expected = ReasonCode.MALFORMED_PACKET
    if place in one.from_servers:
        expected = ReasonCode.PROTOCOL_ERROR
    assert error.reason is expected
    assert one.name in error.text


@pytest.mark.parametrize(("one", "place"), ALLOWED, ids=label)
def test_twice(one: Property, place: PropertyCarrier) -> None:
    raw = encode_property(one.identifier, VALUES[one.kind]) * 2
    if one.repeats:
        assert read(raw, place) == ({}, (("k", "v"), ("k", "v")))
    else:
        error = refused(raw, place)
        assert error.reason is ReasonCode.PROTOCOL_ERROR
        assert "twice" in error.text


@pytest.mark.parametrize(("one", "place"), ALLOWED, ids=label)
def test_cut_off(one: Property, place: PropertyCarrier) -> None:
    raw = encode_property(one.identifier, VALUES[one.kind])
    for size in range(1, len(raw)):
        error = refused(raw[:size], place)
        assert error.reason is ReasonCode.MALFORMED_PACKET
        # Also if the packet continues after the block.
        with pytest.raises(ProtocolError):
            decode_properties(raw + b"\0\0\0\0", 0, size, FROM_CLIENTS[place], place)


@pytest.mark.parametrize(
    ("identifier", "value", "reason", "statement"),
    [
        (0x01, 2, ReasonCode.PROTOCOL_ERROR, "MQTT-4.13.1-1"),
        (0x01, 255, ReasonCode.PROTOCOL_ERROR, "MQTT-4.13.1-1"),
        (0x0B, 0, ReasonCode.PROTOCOL_ERROR, "MQTT-4.13.1-1"),
        (0x17, 2, ReasonCode.PROTOCOL_ERROR, "MQTT-4.13.1-1"),
        (0x19, 2, ReasonCode.PROTOCOL_ERROR, "MQTT-4.13.1-1"),
        (0x21, 0, ReasonCode.PROTOCOL_ERROR, "MQTT-4.13.1-1"),
        (0x23, 0, ReasonCode.TOPIC_ALIAS_INVALID, "MQTT-3.3.2-8"),
        (0x27, 0, ReasonCode.PROTOCOL_ERROR, "MQTT-4.13.1-1"),
    ],
)
def test_numbers_out_of_range(
    identifier: int, value: int, reason: ReasonCode, statement: str
) -> None:
    one = PROPERTIES[identifier]
    for place in one.from_clients:
        error = refused(encode_property(identifier, value), place)
        assert (error.reason, error.statement) == (reason, statement)


@pytest.mark.parametrize(
    ("one", "place"),
    [(one, place) for one, place in ALLOWED if one.kind in {Kind.TEXT, Kind.PAIR}],
    ids=label,
)
@pytest.mark.parametrize("bad", [b"\xff", b"\xed\xa0\x80", b"\xc0\x80", b"a\0"])
def test_text_that_is_no_text(one: Property, place: PropertyCarrier, bad: bytes) -> None:
    wrong = len(bad).to_bytes(2, "big") + bad
    mark = bytes((one.identifier,))
    raws = [mark + wrong]
    if one.kind is Kind.PAIR:
        raws = [mark + wrong + b"\0\1v", mark + b"\0\1k" + wrong]
    for raw in raws:
        assert refused(raw, place).reason is ReasonCode.MALFORMED_PACKET


def test_text_is_kept_as_it_is() -> None:
    text = "\ufeff \x01\uffff"
    assert read(encode_property(0x03, text), PacketType.PUBLISH) == ({3: text}, ())


@pytest.mark.parametrize("identifier", [0, 4, 7, 0x14, 0x2B, 0x7F])
def test_an_unknown_identifier(identifier: int) -> None:
    error = refused(bytes((identifier, 0)), PacketType.PUBLISH)
    assert error.reason is ReasonCode.MALFORMED_PACKET
    assert f"0x{identifier:02x}" in error.text


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        (b"\0", 0),
        (b"\x7f", 127),
        (b"\x80\1", 128),
        (b"\xff\x7f", 16_383),
        (b"\x80\x80\1", 16_384),
        (b"\xff\xff\xff\x7f", 268_435_455),
    ],
)
def test_variable_byte_integers(raw: bytes, value: int) -> None:
    assert read_variable(raw, 0, len(raw), "it") == (value, len(raw))
    for size in range(len(raw)):
        with pytest.raises(ProtocolError):
            read_variable(raw, 0, size, "it")


@pytest.mark.parametrize(
    "raw", [b"\x80\0", b"\xff\x80\0", b"\x80\x80\x80\0", b"\xff\xff\xff\xff\1"]
)
def test_variable_byte_integers_that_are_too_long(raw: bytes) -> None:
    with pytest.raises(ProtocolError) as caught:
        read_variable(raw, 0, len(raw), "it")
    assert caught.value.statement == "MQTT-1.5.5-1"
    assert caught.value.reason is ReasonCode.MALFORMED_PACKET


def test_a_block_is_bounded() -> None:
    fits = with_length(bytes(MAX_PROPERTY_BYTES))
    assert find_properties(fits, 0, len(fits), "it") == (len(fits) - MAX_PROPERTY_BYTES, len(fits))
    large = with_length(bytes(MAX_PROPERTY_BYTES + 1))
    with pytest.raises(ProtocolError) as caught:
        find_properties(large, 0, len(large), "it")
    assert caught.value.reason is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


@pytest.mark.parametrize("first", [b"", b"\x01\1"])
def test_the_number_of_properties_is_bounded(first: bytes) -> None:
    pair = b"\x26\0\1a\0\0"
    fits = first + (MAX_PROPERTIES - bool(first)) * pair
    assert read_publish_properties(fits).block == fits
    with pytest.raises(ProtocolError) as caught:
        read_publish_properties(fits + pair)
    assert caught.value.reason is ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR


def test_the_longest_strings_fit_into_a_block() -> None:
    longest = "x" * 65_535
    block = encode_properties({3: longest, 8: longest, 9: longest.encode()}, ((longest, longest),))
    assert len(block) <= MAX_PROPERTY_BYTES
    assert read_publish_properties(block).block == block


def test_the_memory_of_blocks_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(message_properties, "_CACHED", 100)
    for number in range(1000):
        raw = encode_properties({9: b"%d" % number})
        assert read_publish_properties(raw).block == raw
    read_publish_properties(encode_properties({9: bytes(1000)}))
    assert len(message_properties.known_properties) <= 100
    assert max(map(len, message_properties.known_properties)) <= 512
    assert b"" in message_properties.known_properties


# --- blocks of messages -----------------------------------------------------------------------

text = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=20)
topics = text.filter(bool).map(lambda topic: topic.translate({43: "p", 35: "h"}))
values = st.fixed_dictionaries(
    {},
    optional={
        1: st.integers(0, 1),
        2: st.integers(0, 0xFFFFFFFF),
        3: text,
        8: topics,
        9: st.binary(max_size=20),
        TOPIC_ALIAS: st.integers(1, 65_535),
    },
)
users = st.lists(st.tuples(text, text), max_size=4).map(tuple)


@given(values, users, st.randoms())
def test_a_split_block_keeps_its_content(
    chosen: dict[int, Value], user: tuple[tuple[str, str], ...], random: object
) -> None:
    parts = [encode_property(one, value) for one, value in chosen.items()]
    parts += [encode_property(USER_PROPERTY, pair) for pair in user]
    alias = chosen.get(TOPIC_ALIAS, 0)
    order = list(chosen)
    random.shuffle(order)  # type: ignore[attr-defined]
    raw = b"".join(encode_property(one, chosen[one]) for one in order)
    raw += b"".join(encode_property(USER_PROPERTY, pair) for pair in user)
    found = split_properties(raw, PacketType.PUBLISH)
    assert found.alias == alias
    assert found.expiry == chosen.get(2, -1)
    assert found.is_text == (chosen.get(1) == 1)
    assert expiry_of(found.block) == chosen.get(2)
    assert decode_message_properties(found.block) == MessageProperties(
        chosen.get(1, 0),  # type: ignore[arg-type]
        chosen.get(2),  # type: ignore[arg-type]
        chosen.get(3),  # type: ignore[arg-type]
        chosen.get(8),  # type: ignore[arg-type]
        chosen.get(9),  # type: ignore[arg-type]
        user,
    )
    assert len(found.block) == len(raw) - (3 if alias else 0)
    assert split_properties(found.block, PacketType.PUBLISH).block == found.block


def test_user_properties_keep_their_order_among_others() -> None:
    pairs = [encode_property(USER_PROPERTY, (name, "v")) for name in "cab"]
    raw = pairs[0] + encode_property(1, 1) + pairs[1] + encode_property(2, 9) + pairs[2]
    assert read_publish_properties(raw).block == (
        encode_property(2, 9) + pairs[0] + encode_property(1, 1) + pairs[1] + pairs[2]
    )


def test_the_delay_of_a_will_is_no_property_of_its_message() -> None:
    raw = encode_property(0x18, 7) + encode_property(3, "x") + encode_property(2, 1)
    found = split_properties(raw, WILL)
    assert (found.delay, found.expiry) == (7, 1)
    assert found.block == encode_property(2, 1) + encode_property(3, "x")


@pytest.mark.parametrize(
    ("indicator", "payload", "broken"),
    [(1, b"\xff", True), (1, "é".encode(), False), (0, b"\xff", False), (None, b"\xff", False)],
)
def test_payload_format(indicator: int | None, payload: bytes, broken: bool) -> None:
    block = encode_properties({1: indicator, 3: "x"})
    assert is_payload_format_broken(block, payload) is broken


def test_a_server_may_send_several_identifiers_in_a_message() -> None:
    raw = encode_property(SUBSCRIPTION_IDENTIFIER, 1) + encode_property(SUBSCRIPTION_IDENTIFIER, 2)
    place = PacketType.PUBLISH
    assert decode_properties(raw, 0, len(raw), FROM_SERVERS[place], place) == (
        {SUBSCRIPTION_IDENTIFIER: 2},
        (),
    )


@pytest.mark.parametrize(
    ("identifier", "value", "error"),
    [
        (1, 256, ValueError),
        (0x21, 65_536, ValueError),
        (2, -1, ValueError),
        (3, "x" * 65_536, ValueError),
        (0x0B, 268_435_456, ValueError),
        (2, "1", TypeError),
        (3, b"x", TypeError),
    ],
)
def test_properties_that_cannot_be_written(
    identifier: int, value: Value, error: type[Exception]
) -> None:
    with pytest.raises(error):
        encode_property(identifier, value)
