"""The catalogues, decoded whole, byte by byte, cut everywhere and two at once; and encoded."""

from collections.abc import Iterable

import pytest
from client_captures import CAPTURES
from harness.catalogue import BAD, CONNECT, CONNECT_3_1, GOOD, LIMIT, Bad, Good
from harness.catalogue_v5 import BAD5, CONNECT5, GOOD5, Bad5, Good5
from harness.client_packets import bytewise
from harness.codec import decode, decode_v5, decoder_v5, encode, encode_v5

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
from protocol.mqtt.protocol_error import ProtocolError

_MAX_CUTS = 200


def _cases(entries: Iterable[Good | Good5 | Bad | Bad5]) -> list[object]:
    """The entries, each with whether it is of MQTT 5; before, with the statement it proves."""
    return [
        pytest.param(
            entry,
            v5 := isinstance(entry, Good5 | Bad5),
            id=f"{5 if v5 else 4}-{entry.name}",
            marks=[pytest.mark.mqtt(statement)]
            if not v5 and (statement := getattr(entry, "statement", ""))
            else [],
        )
        for entry in entries
    ]


ALL_GOOD, ALL_BAD = [*GOOD, *GOOD5], [*BAD, *BAD5]
AFTER_CONNECT = [entry for entry in ALL_GOOD if entry.after in (CONNECT, CONNECT5)]


def _before(entry: Good | Good5 | Bad | Bad5, *, v5: bool) -> list[Connect]:
    return [parse_connect(entry.after[2:], v5=v5)] if entry.after else []


def _cuts(raw: bytes) -> list[list[bytes]]:
    """The packet whole, byte by byte, and in two at every position (near both ends if long)."""
    positions = range(1, len(raw))
    near = [at for at in positions if at < _MAX_CUTS or at > len(raw) - _MAX_CUTS]
    return [[raw], bytewise(raw), *([raw[:at], raw[at:]] for at in near)]


def _check_error(error: ProtocolError | None, entry: Bad | Bad5) -> None:
    assert error is not None
    assert error.statement == entry.statement
    if isinstance(entry, Bad5):
        assert error.reason == entry.reason
    else:
        assert error.connack == entry.connack
    assert entry.statement in str(error)
    assert error.text in str(error)


def test_the_names_are_distinct() -> None:
    for entries in ((*GOOD, *BAD), (*GOOD5, *BAD5)):
        names = [entry.name for entry in entries]
        assert len(set(names)) == len(names)


@pytest.mark.parametrize(("entry", "v5"), _cases(ALL_GOOD))
def test_good(entry: Good | Good5, *, v5: bool) -> None:
    for pieces in _cuts(entry.raw):
        packets, error = decode([entry.after, *pieces], LIMIT, v5=v5)
        assert error is None
        assert packets == [*_before(entry, v5=v5), entry.packet]


@pytest.mark.parametrize(("entry", "v5"), _cases(one for one in ALL_GOOD if one.shortest))
def test_valid_packets_equal_the_output_of_the_encoder(entry: Good | Good5, *, v5: bool) -> None:
    assert encode(entry.packet, v5=v5) == entry.raw


@pytest.mark.parametrize(
    ("first", "v5"),
    _cases(one for one in AFTER_CONNECT if not isinstance(one.packet, Disconnect)),
)
def test_good_two_at_once(first: Good | Good5, *, v5: bool) -> None:
    for second in (one for one in AFTER_CONNECT if one.after == first.after):
        packets, error = decode([first.after + first.raw + second.raw], LIMIT, v5=v5)
        assert error is None
        assert packets[1:] == [first.packet, second.packet]


@pytest.mark.mqtt5("MQTT-3.15.1-1", "MQTT-3.15.2-1", "MQTT-4.12.0-5")
@pytest.mark.parametrize(("entry", "v5"), _cases(ALL_BAD))
def test_bad(entry: Bad | Bad5, *, v5: bool) -> None:
    for pieces in _cuts(entry.raw):
        again = CONNECT5 if v5 else CONNECT
        packets, error = decode([entry.after, *pieces, b"\xc0\x00", again], LIMIT, v5=v5)
        assert packets == _before(entry, v5=v5)
        _check_error(error, entry)


@pytest.mark.mqtt("MQTT-4.8.0-1")
@pytest.mark.parametrize(
    ("entry", "v5"), _cases(one for one in ALL_BAD if one.after in (CONNECT, CONNECT5))
)
def test_bad_loses_nothing_before_it(entry: Bad | Bad5, *, v5: bool) -> None:
    before: list[Packet | Publish] = [
        Publish(b"t", b"m", 0, False, False, 0),
        Publish(b"t", b"m", 1, False, False, 1),
        Acks(PacketType.PUBACK, [5]),
    ]
    if v5:
        before.insert(1, Publish(b"t", b"m", 0, False, False, 0, b"\1\1"))
        before.append(Acks(PacketType.PUBACK, [5], [0x97]))
    raw = b"".join(encode(packet, v5=v5) for packet in before)
    packets, error = decode([entry.after + raw + entry.raw], LIMIT, v5=v5)
    assert packets == [*_before(entry, v5=v5), *before]
    _check_error(error, entry)


@pytest.mark.mqtt("MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1")
@pytest.mark.parametrize("raw", [b"\x6a\x02\0\1", b"\x8a\x06\0\1\0\1t\0", b"\xaa\x05\0\1\0\1t"])
def test_dup_on_other_packets_is_only_for_3_1(raw: bytes) -> None:
    assert decode([CONNECT_3_1 + raw], LIMIT)[1] is None
    assert decode([CONNECT + raw], LIMIT)[1] is not None


# --- levels ------------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", BAD5, ids=lambda entry: entry.name)
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
