"""The catalogue of level 5: decoded whole, byte by byte, cut everywhere, two at once; written."""

import pytest
from client_captures import CAPTURES
from codec_helpers_v5 import decode_v5, decoder_v5, encode_v5
from harness.catalogue_v5 import BAD5, CONNECT5, GOOD5, LIMIT, Bad5, Good5
from harness.client_packets import bytewise

from protocol.mqtt.connect_decoder import parse_connect
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.message_properties import decode_message_properties
from protocol.mqtt.packets import (
    Acks,
    Connect,
    ConnectCode,
    Disconnect,
    Packet,
    PacketType,
    Publish,
    Publishes,
    Subscribe,
)

AFTER_CONNECT = [
    one for one in GOOD5 if one.after == CONNECT5 and not isinstance(one.packet, Disconnect)
]


def named(entry: Good5 | Bad5) -> str:
    return entry.name


def _before(entry: Good5 | Bad5) -> list[Connect]:
    return [parse_connect(entry.after[2:], v5=True)] if entry.after else []


def _cuts(raw: bytes) -> list[list[bytes]]:
    return [[raw], bytewise(raw), *([raw[:at], raw[at:]] for at in range(1, min(len(raw), 200)))]


def test_the_names_are_distinct() -> None:
    names = [*(entry.name for entry in GOOD5), *(entry.name for entry in BAD5)]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("entry", GOOD5, ids=named)
def test_good(entry: Good5) -> None:
    for pieces in _cuts(entry.raw):
        assert decode_v5([entry.after, *pieces], LIMIT) == ([*_before(entry), entry.packet], None)


@pytest.mark.parametrize("entry", [one for one in GOOD5 if one.same], ids=named)
def test_valid_packets_equal_the_output_of_the_encoder(entry: Good5) -> None:
    assert encode_v5(entry.packet) == entry.raw


@pytest.mark.parametrize("first", AFTER_CONNECT, ids=named)
def test_good_two_at_once(first: Good5) -> None:
    for second in AFTER_CONNECT:
        found, error = decode_v5([CONNECT5 + first.raw + second.raw], LIMIT)
        assert error is None
        assert found[1:] == [first.packet, second.packet]


@pytest.mark.mqtt5("MQTT-3.15.1-1", "MQTT-3.15.2-1", "MQTT-4.12.0-5")
@pytest.mark.parametrize("entry", BAD5, ids=named)
def test_bad(entry: Bad5) -> None:
    for pieces in _cuts(entry.raw):
        found, error = decode_v5([entry.after, *pieces, b"\xc0\0", CONNECT5], LIMIT)
        assert found == _before(entry)
        assert error is not None
        assert (error.reason, error.statement) == (entry.reason, entry.statement)
        assert error.text in str(error)


@pytest.mark.parametrize("entry", [one for one in BAD5 if one.after == CONNECT5], ids=named)
def test_bad_loses_nothing_before_it(entry: Bad5) -> None:
    before: list[Packet | Publish] = [
        Publish(b"t", b"m", 0, False, False, 0),
        Publish(b"t", b"m", 0, False, False, 0, b"\1\1"),
        Publish(b"t", b"m", 1, False, False, 1),
        Acks(PacketType.PUBACK, [5]),
        Acks(PacketType.PUBACK, [5], [0x97]),
    ]
    raw = b"".join(map(encode_v5, before))
    found, error = decode_v5([CONNECT5 + raw + entry.raw], LIMIT)
    assert found == [*_before(entry), *before]
    assert error is not None
    assert (error.reason, error.statement) == (entry.reason, entry.statement)


@pytest.mark.parametrize("entry", BAD5, ids=named)
def test_the_level_is_known_when_the_error_is(entry: Bad5) -> None:
    decoder = decoder_v5(LIMIT)
    decoder.feed(entry.after + entry.raw)
    assert decoder.error is not None
    assert decoder.level == 5


@pytest.mark.parametrize(
    ("raw", "level"),
    [
        (CONNECT5, 5),
        (b"\x10\x0d\0\4MQTT\4\2\0\x3c\0\1c", 4),
        (b"\x10\x0f\0\6MQIsdp\3\2\0\x3c\0\1c", 3),
    ],
)
def test_levels_side_by_side(raw: bytes, level: int) -> None:
    decoder = decoder_v5(LIMIT)
    assert decoder.level == 0
    (connect,) = decoder.feed(raw)
    assert isinstance(connect, Connect)
    assert (connect.version, decoder.level, decoder.error) == (level, level, None)
    publish = b"\x30\6\0\1t\0mm" if level == 5 else b"\x30\5\0\1tmm"
    (batch,) = decoder.feed(publish)
    assert isinstance(batch, Publishes)
    assert batch.payloads == [b"mm"]
    assert batch.packets == [publish]
    assert (batch.blocks is None) == (level < 5)


@pytest.mark.parametrize("level", [0, 1, 2, 3])
def test_lower_levels_are_refused_in_the_old_way(level: int) -> None:
    decoder = decoder_v5(LIMIT)
    assert decoder.feed(b"\x10\x0a\0\4MQTT" + bytes((level,)) + b"\xff\xff\xff") == []
    assert decoder.level == 0
    assert decoder.error is not None
    assert decoder.error.connack is ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION


@pytest.mark.mqtt5("MQTT-3.1.2-1", "MQTT-3.1.2-2")
@pytest.mark.parametrize("level", [6, 0x85, 255])
def test_of_a_level_above_5_nothing_but_the_level_is_read(level: int) -> None:
    decoder = decoder_v5(LIMIT)
    assert decoder.feed(b"\x10\x0a\0\4MQTT" + bytes((level,)) + b"\xff\xff\xff") == []
    assert decoder.level == 0
    assert decoder.error is not None
    assert decoder.error.connack is ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION


def test_without_a_reader_level_5_is_refused() -> None:
    decoder = Decoder(LIMIT)
    assert decoder.feed(CONNECT5) == []
    assert decoder.error is not None
    assert decoder.error.connack is ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION


# --- real clients -----------------------------------------------------------------------------


@pytest.mark.parametrize("client", CAPTURES)
def test_packets_of_real_clients_are_read(client: str) -> None:
    raw = bytes.fromhex(CAPTURES[client])
    whole, error = decode_v5([raw], LIMIT)
    assert error is None
    assert isinstance(whole[0], Connect)
    assert isinstance(whole[-1], Disconnect)
    assert decode_v5(bytewise(raw), LIMIT) == (whole, None)
    again, error = decode_v5([b"".join(map(encode_v5, whole))], LIMIT)
    assert (again, error) == (whole, None)


def _of(client: str, kind: type) -> list[Packet | Publish]:
    found, _ = decode_v5([bytes.fromhex(CAPTURES[client])], LIMIT)
    return [one for one in found if isinstance(one, kind)]


def test_packets_of_mosquitto_pub() -> None:
    (connect,) = _of("mosquitto_pub 2.0.11", Connect)
    assert isinstance(connect, Connect)
    assert connect.will is not None
    assert (connect.will.delay, decode_message_properties(connect.will.block).user) == (
        5,
        (("a", "b"),),
    )
    (message,) = _of("mosquitto_pub 2.0.11", Publish)
    assert isinstance(message, Publish)
    said = decode_message_properties(message.block)
    assert said.expiry == 60
    assert (said.payload_format, said.content_type) == (1, "text/plain")
    assert (said.response_topic, said.correlation, said.user) == ("r/1", b"abc", (("k", "v"),))
    (end,) = _of("mosquitto_pub 2.0.11", Disconnect)
    assert isinstance(end, Disconnect)
    assert end.session_expiry == 30


def test_packets_of_paho() -> None:
    (subscribe,) = _of("paho-mqtt 2.1", Subscribe)
    assert subscribe == Subscribe(1, [("t", 2)], [0x2C], 300, (("q", "w"),))
    messages = [one for one in _of("paho-mqtt 2.1", Publish) if isinstance(one, Publish)]
    assert [one.topic for one in messages] == [b"alias/topic", b"alias/topic", b"plain"]
    assert decode_message_properties(messages[1].block).user == (("a", "1"), ("a", "2"))
    assert _of("paho-mqtt 2.1", Disconnect) == [Disconnect(4)]
