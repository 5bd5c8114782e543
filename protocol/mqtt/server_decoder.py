"""The strict decoder of what a server sends to a client: for bridges to brokers of others.

It gets bytes in whatever pieces they arrive and checks everything that the standard lets a client
check, because a bridge writes into the log what it was sent. The bodies are read by
``protocol.mqtt.server_packet_decoder``.
"""

from __future__ import annotations

from typing import Final

from protocol.mqtt.connect_decoder import MQTT_3_1, MQTT_5
from protocol.mqtt.decoder_v5 import PUBLISH
from protocol.mqtt.encoder import SUBSCRIBE_FAILURE
from protocol.mqtt.field_reader import read_frame
from protocol.mqtt.packets import Acks, ConnectCode, PacketType
from protocol.mqtt.property_codec import malformed, violation
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.publish_decoder import check_topic, known_topics, read_acks
from protocol.mqtt.reason_codes import FROM_SERVERS, STATEMENTS, ReasonCode
from protocol.mqtt.remaining_length import read_length
from protocol.mqtt.server_packet_decoder import Answer, ServerPacket, read_answer, read_publish

_CONNACK: Final = frozenset({0x20})
_LEGAL: Final = PUBLISH | {0x40, 0x50, 0x62, 0x70, 0x90, 0xB0, 0xD0}
_LEGAL_3_1: Final = _LEGAL | {0x6A}
"""MQTT 3.1 allows DUP in PUBREL."""
_LEGAL_V5: Final = _LEGAL | {0xE0}
"""No AUTH: a client that announced no method gets none [MQTT-4.12.0-6]."""

_ACKS: Final = frozenset(
    {PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP}
)
_IDENTIFIED: Final = _ACKS | {PacketType.SUBACK, PacketType.UNSUBACK}
_GRANTS: Final = frozenset({0, 1, 2, SUBSCRIBE_FAILURE})
_LEAST: Final = {
    PacketType.CONNACK: 2,
    PacketType.SUBACK: 3,
    PacketType.UNSUBACK: 2,
    PacketType.PINGRESP: 0,
}
"""Bytes in the body of an answer before MQTT 5, at least."""
_LEAST_V5: Final = {**_LEAST, PacketType.CONNACK: 3, PacketType.SUBACK: 4, PacketType.UNSUBACK: 4}


class ServerDecoder:
    """Decodes the packets of one server, as long as its connection lasts.

    ``version`` is the level of the client, 3, 4 or 5; ``max_packet_size`` is the largest whole
    packet accepted, in bytes.

    ``feed`` never raises for what a server sends. Check ``error`` after each call: once it is set,
    the packets that the call returned are still valid; later calls return nothing.
    """

    __slots__ = ("_legal", "_max_packet_size", "_needed", "_pieces", "_size", "_version", "error")

    def __init__(self, version: int, max_packet_size: int) -> None:
        self.error: ProtocolError | None = None
        self._version = version
        self._max_packet_size = max_packet_size
        self._legal = _CONNACK
        self._pieces: list[bytes] = []
        """An incomplete packet, as it arrived."""
        self._size = 0
        """Bytes in the pieces."""
        self._needed = 0
        """Bytes of the incomplete packet, as far as known."""

    def feed(self, data: bytes) -> list[ServerPacket]:
        """Return the packets that the data completes.

        Consecutive acknowledgements of one type, without reasons, are one ``Acks``.
        """
        if self.error is not None:
            return []
        if self._pieces:
            self._pieces.append(data)
            self._size += len(data)
            if self._size < self._needed:
                return []
            data = b"".join(self._pieces)
            self._pieces.clear()
        packets: list[ServerPacket] = []
        try:
            at = self._read_all(data, packets)
        except ProtocolError as error:
            self.error = error
            return packets
        if at < len(data):
            self._pieces = [data[at:]]
            self._size = len(data) - at
        return packets

    def _read_all(self, data: bytes, packets: list[ServerPacket]) -> int:
        """Read all whole packets; return the offset of the first unread byte."""
        at, v5 = 0, self._version == MQTT_5
        while at < len(data):
            first = data[at]
            if first not in self._legal:
                raise self._illegal(first)
            framed = read_frame(data, at + 1) if v5 else read_length(data, at + 1)
            if framed is None:
                self._needed = len(data) - at + 1
                break
            length, body = framed
            stop = body + length
            if stop - at > self._max_packet_size:
                raise violation(
                    f"a packet of {stop - at} bytes, and the limit is {self._max_packet_size}",
                    "MQTT-3.1.2-24",
                    ReasonCode.PACKET_TOO_LARGE,
                )
            if stop > len(data):
                self._needed = stop - at
                break
            kind = PacketType(first >> 4)
            if kind in _ACKS and length == 2:
                acks = Acks(kind, [])
                try:
                    stop = read_acks(data, at, acks)
                finally:  # those before one with the identifier 0 are valid
                    if acks:
                        packets.append(acks)
            elif kind is PacketType.PUBLISH:
                packets.append(self._publish(data, at, body, stop))
            else:
                packets.append(self._answer(kind, data[body:stop]))
            at = stop
        return at

    def _publish(self, data: bytes, at: int, body: int, stop: int) -> ServerPacket:
        name = body + 2
        end = name + int.from_bytes(data[body:name], "big")
        if stop < name or (end + 2 if data[at] & 6 else end) > stop:
            raise malformed("PUBLISH ends inside its variable header")
        topic = data[name:end]
        if data[at] & 6 and not data[end] | data[end + 1]:
            raise violation("PUBLISH with packet identifier 0", "MQTT-2.2.1-3")
        if topic not in known_topics and (topic or self._version != MQTT_5):
            check_topic(topic)
        message = read_publish(data[at], data, body, stop, v5=self._version == MQTT_5)
        if message.alias:
            raise violation(
                "PUBLISH with a topic alias, and the Topic Alias Maximum is 0",
                "MQTT-3.1.2-26",
                ReasonCode.TOPIC_ALIAS_INVALID,
            )
        if not topic:
            raise violation("PUBLISH without topic and alias", "MQTT-3.3.2-8")
        return message

    def _answer(self, kind: PacketType, body: bytes) -> Answer:
        v5 = self._version == MQTT_5
        least = (_LEAST_V5 if v5 else _LEAST).get(kind, 2 if kind in _ACKS else 0)
        if len(body) < least:
            raise malformed(f"{kind.name} of {len(body)} bytes, at least {least} are needed")
        if kind is PacketType.PINGRESP:
            if body:
                raise malformed(f"PINGRESP: {len(body)} bytes too many")
            return Answer(kind)
        answer = read_answer(kind, body, v5=v5)
        if not answer.packet_id and kind in _IDENTIFIED:
            raise violation(f"{kind.name} with packet identifier 0", "MQTT-2.2.1-3")
        with_codes = kind is PacketType.SUBACK or (v5 and kind is PacketType.UNSUBACK)
        if bool(answer.codes) is not with_codes:
            raise malformed(
                f"{kind.name}: {len(answer.codes)} bytes too many"
                if answer.codes
                else f"{kind.name} without reason codes"
            )
        if kind is PacketType.CONNACK:
            self._check_connack(answer, body[0])
        elif not v5 and (answer.reason or kind in _ACKS):
            raise malformed(f"{kind.name} of {len(body)} bytes")
        self._check_codes(kind, answer)
        return answer

    def _check_connack(self, answer: Answer, flags: int) -> None:
        v5 = self._version == MQTT_5
        if flags > 1:
            raise malformed(f"CONNACK with flags 0x{flags:02x}", "MQTT-3.2.2-1")
        if not v5 and answer.reason > max(ConnectCode):
            raise malformed(f"CONNACK with return code 0x{answer.reason:02x}")
        if answer.session_present and (answer.reason or self._version == MQTT_3_1):
            raise violation("CONNACK that refuses, with Session Present", "MQTT-3.2.2-6")
        if not answer.reason:
            self._legal = _LEGAL_V5 if v5 else _LEGAL_3_1 if self._version == MQTT_3_1 else _LEGAL
        else:
            self._legal = frozenset()

    def _check_codes(self, kind: PacketType, answer: Answer) -> None:
        if self._version == MQTT_5:
            legal = FROM_SERVERS[kind]
            codes = answer.codes or bytes((answer.reason,))
        elif kind is PacketType.SUBACK:
            legal, codes = _GRANTS, answer.codes
        else:
            return
        if not legal.issuperset(codes):
            code = next(code for code in codes if code not in legal)
            raise violation(f"{kind.name} with reason code 0x{code:02x}", STATEMENTS[kind])

    def _illegal(self, first: int) -> ProtocolError:
        kind = first >> 4
        name = PacketType(kind).name if kind else "a packet of type 0"
        if self._legal is _CONNACK:
            return violation(f"{name} before CONNACK", "MQTT-3.2.0-1")
        if not self._legal:
            return violation(f"{name} after a CONNACK that refuses", "MQTT-3.2.2-7")
        if kind == PacketType.PUBLISH:
            return malformed(f"PUBLISH with flags 0x{first & 15:x}", "MQTT-3.3.1-4")
        if any(legal >> 4 == kind for legal in self._legal):
            return malformed(f"{name} with flags 0x{first & 15:x}", "MQTT-2.1.3-1")
        return violation(f"{name}, which a server does not send here")
