"""The strict decoder of a server's packets: what it returns, and what it refuses."""

import pytest
from harness.client_packets import bytewise
from hypothesis import given
from hypothesis import strategies as st

from protocol.mqtt.client_packet_encoder import encode_connect, encode_publish
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.encoder import (
    PINGRESP,
    encode_acks,
    encode_connack,
    encode_suback,
    encode_unsuback,
)
from protocol.mqtt.packets import Acks, Connect, ConnectCode, PacketType, Publish
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.server_decoder import ServerDecoder
from protocol.mqtt.server_packet_decoder import Answer, SentMessage
from protocol.mqtt.server_packet_encoder_v5 import (
    encode_acks_v5,
    encode_codes_v5,
    encode_connack_v5,
    encode_server_disconnect,
)

LIMIT = 4096
ACCEPTED = {4: encode_connack(ConnectCode.ACCEPTED), 5: encode_connack_v5(0)}


def decoder(version: int) -> ServerDecoder:
    made = ServerDecoder(version, LIMIT)
    (connack,) = made.feed(ACCEPTED.get(version, ACCEPTED[4]))
    assert connack == Answer(PacketType.CONNACK)
    return made


SOUND_V5 = [
    encode_publish(b"a/b", b"x", block=b""),
    encode_publish(b"a/b", b"x" * 300, 2, 7, retain=True, dup=True, block=b"\x26\0\1k\0\1v"),
    encode_acks_v5(PacketType.PUBACK, [1, 258, 3]),
    encode_acks_v5(PacketType.PUBREC, [1], [0x97]),
    encode_acks_v5(PacketType.PUBREL, [65_535]),
    encode_acks_v5(PacketType.PUBCOMP, [4], [0x92]),
    encode_codes_v5(PacketType.SUBACK, 1, [0, 1, 2, 0x87]),
    encode_codes_v5(PacketType.UNSUBACK, 258, [0, 0x11]),
    PINGRESP,
    encode_server_disconnect(0x8E),
]
SOUND = [
    encode_publish(b"a/b", b"x"),
    encode_publish(b"a/b", b"x" * 300, 1, 7, retain=True, dup=True),
    encode_acks(PacketType.PUBACK, [1, 258, 3]),
    encode_acks(PacketType.PUBREL, [65_535]),
    encode_suback(1, [0, 1, 2, 0x80]),
    encode_unsuback(258),
    PINGRESP,
]


@pytest.mark.parametrize(("version", "sound"), [(4, SOUND), (5, SOUND_V5)])
def test_packets_are_the_same_however_they_are_cut(version: int, sound: list[bytes]) -> None:
    def whole(pieces: list[bytes]) -> list[object]:
        made = decoder(version)
        packets = [packet for piece in pieces for packet in made.feed(piece)]
        assert made.error is None
        return [
            Acks(packet.kind, [number]) if isinstance(packet, Acks) else packet
            for packet in packets
            for number in (packet.packet_ids if isinstance(packet, Acks) else [0])
        ]

    at_once = whole([b"".join(sound)])
    assert len(at_once) == len(sound) + 2  # the three PUBACKs are one batch
    assert at_once == whole(sound) == whole(bytewise(b"".join(sound)))


def test_a_message_has_all_its_fields() -> None:
    raw = encode_publish(b"a", b"x", 2, 7, retain=True, dup=True, block=b"\x26\0\1k\0\1v")
    (message,) = decoder(5).feed(raw)
    publish = Publish(b"a", b"x", 2, True, True, 7, b"\x26\0\1k\0\1v")
    assert message == SentMessage(publish)


REFUSED_V5 = [
    (ACCEPTED[5], "CONNACK, which a server does not send here [MQTT-4.13.1-1]"),
    (b"\x3e\5\0\1a\0\1", "PUBLISH with flags 0xe [MQTT-3.3.1-4]"),
    (b"\x38\4\0\1a\0", "PUBLISH with flags 0x8 [MQTT-3.3.1-4]"),
    (b"\x30\3\0\2a", "PUBLISH ends inside its variable header [MQTT-4.13.1-1]"),
    (b"\x32\4\0\1a\0", "PUBLISH ends inside its variable header [MQTT-4.13.1-1]"),
    (b"\x32\6\0\1a\0\0\0", "PUBLISH with packet identifier 0 [MQTT-2.2.1-3]"),
    (b"\x30\4\0\1#\0", "PUBLISH: topic name contains a wildcard [MQTT-3.3.2-2]"),
    (b"\x30\3\0\0\0", "PUBLISH without topic and alias [MQTT-3.3.2-8]"),
    (
        b"\x30\7\0\1a\3\x23\0\1",
        "PUBLISH with a topic alias, and the Topic Alias Maximum is 0 [MQTT-3.1.2-26]",
    ),
    (b"\x30\6\0\1a\2\x24\1", "PUBLISH with Maximum QoS, which does not belong there"),
    (b"\x40\1\0", "PUBACK of 1 bytes, at least 2 are needed"),
    (b"\x40\2\0\0", "PUBACK with packet identifier 0"),
    (b"\x40\3\0\1\x92", "PUBACK with reason code 0x92 [MQTT-3.4.2-1]"),
    (b"\x40\5\0\1\0\0\0", "PUBACK: 1 bytes too many"),
    (b"\x41\2\0\1", "PUBACK with flags 0x1 [MQTT-2.1.3-1]"),
    (b"\x60\2\0\1", "PUBREL with flags 0x0 [MQTT-2.1.3-1]"),
    (b"\x90\3\0\1\0", "SUBACK of 3 bytes, at least 4 are needed"),
    (b"\x90\5\0\0\0\0\0", "SUBACK with packet identifier 0"),
    (b"\x90\4\0\1\0\3", "SUBACK with reason code 0x03"),
    (b"\x90\6\0\1\3\x1f\0\0", "SUBACK without reason codes"),
    (b"\xb0\4\0\1\0\1", "UNSUBACK with reason code 0x01"),
    (b"\xd0\1\0", "PINGRESP: 1 bytes too many"),
    (b"\xe0\1\4", "DISCONNECT with reason code 0x04"),
    (b"\xf0\2\x18\0", "AUTH, which a server does not send here"),
    (b"\x82\2\0\1", "SUBSCRIBE, which a server does not send here"),
    (b"\0\0", "a packet of type 0, which a server does not send here"),
    (b"\xd0\x80\0", "Remaining Length is longer than necessary [MQTT-1.5.5-1]"),
    (b"\xd0\x80\x80\x80\x80", "Remaining Length is longer than four bytes"),
    (b"\x30\xff\xff\x03", "a packet of 65539 bytes, and the limit is 4096 [MQTT-3.1.2-24]"),
]
REFUSED = [
    (b"\x40\3\0\1\0", "PUBACK of 3 bytes"),
    (b"\x90\3\0\1\3", "SUBACK with reason code 0x03"),
    (b"\xb0\3\0\1\0", "UNSUBACK: 1 bytes too many"),
    (b"\xe0\0", "DISCONNECT, which a server does not send here"),
]


@pytest.mark.parametrize(
    ("version", "raw", "error"),
    [*((5, *row) for row in REFUSED_V5), *((4, *row) for row in REFUSED)],
)
def test_what_no_server_may_send_is_an_error(version: int, raw: bytes, error: str) -> None:
    made = decoder(version)
    assert made.feed(PINGRESP + raw) == [Answer(PacketType.PINGRESP)]
    assert made.error is not None
    assert error in str(made.error)
    assert made.feed(PINGRESP) == []


@pytest.mark.parametrize(
    ("version", "raw", "error"),
    [
        (4, PINGRESP, "PINGRESP before CONNACK"),
        (4, b"\x20\2\2\0", "CONNACK with flags 0x02"),
        (4, b"\x20\2\0\6", "CONNACK with return code 0x06"),
        (4, b"\x20\2\1\5", "CONNACK that refuses, with Session Present"),
        (3, b"\x20\2\1\0", "CONNACK that refuses, with Session Present"),
        (4, b"\x20\3\0\0\0", "CONNACK: 1 bytes too many"),
        (5, b"\x20\2\0\0", "CONNACK of 2 bytes, at least 3 are needed"),
        (5, b"\x20\3\0\1\0", "CONNACK with reason code 0x01"),
        (4, b"\x20\2\0\5" + PINGRESP, "PINGRESP after a CONNACK that refuses"),
    ],
)
def test_the_first_packet_is_a_connack(version: int, raw: bytes, error: str) -> None:
    made = ServerDecoder(version, LIMIT)
    made.feed(raw)
    assert error in str(made.error)


def test_a_packet_beyond_the_limit_is_refused_before_it_is_kept() -> None:
    made = decoder(5)
    made.feed(b"\x30\xff\xff\xff\x7f")
    assert made.error is not None
    assert made.error.reason is ReasonCode.PACKET_TOO_LARGE


@given(st.binary(max_size=200), st.sampled_from([3, 4, 5]), st.integers(0, 200))
def test_no_bytes_raise_and_pieces_do_not_matter(raw: bytes, version: int, cut: int) -> None:
    whole, pieces = decoder(version), decoder(version)
    at_once = whole.feed(raw)
    in_two = pieces.feed(raw[:cut]) + pieces.feed(raw[cut:])
    assert str(whole.error) == str(pieces.error)
    assert _each(at_once) == _each(in_two)


def _each(packets: list[object]) -> list[object]:
    return [
        (packet.kind, number) if isinstance(packet, Acks) else packet
        for packet in packets
        for number in (packet.packet_ids if isinstance(packet, Acks) else [0])
    ]


@pytest.mark.parametrize("version", [3, 4])
def test_the_bridge_bit(version: int) -> None:
    connect = Connect(version, "edge", clean=False, keep_alive=60, bridge=True)
    decoded = Decoder(LIMIT)
    assert decoded.feed(encode_connect(connect)) == [connect]
