"""Decoder of whole packets of a server, for traces; ``server_decoder`` checks them first.

The bytes are whole packets that the broker itself wrote: properties that the encoder guarantees are
not checked. Packets are read lazily, so that a caller that needs only the first few does not pay
for the rest.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from protocol.mqtt.packets import Acks, PacketType, Publish, UserProperties
from protocol.mqtt.property_codec import (
    Value,
    decode_properties,
    find_properties,
    iter_properties,
)
from protocol.mqtt.property_table import (
    FROM_SERVERS,
    SUBSCRIPTION_IDENTIFIER,
    TOPIC_ALIAS,
)
from protocol.mqtt.publish_decoder import read_acks
from protocol.mqtt.remaining_length import read_length

_ACKS = frozenset({PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP})
_WITH_CODES = frozenset({PacketType.SUBACK, PacketType.UNSUBACK})
_FROM_CLIENTS_ONLY = frozenset(
    {PacketType.CONNECT, PacketType.SUBSCRIBE, PacketType.UNSUBSCRIBE, PacketType.PINGREQ}
)
_V5_ONLY = frozenset({PacketType.DISCONNECT, PacketType.AUTH})


@dataclass(slots=True)
class Answer:
    """Any packet of a server except PUBLISH and acknowledgements without reasons."""

    kind: PacketType
    reason: int = 0
    """Reason code; before MQTT 5 only that of a CONNACK."""
    packet_id: int = 0
    codes: bytes = b""
    """Codes of a SUBACK or UNSUBACK, one for each filter."""
    session_present: bool = False
    properties: dict[int, Value] = field(default_factory=dict)
    user: UserProperties = ()


class SentMessage(NamedTuple):
    """A PUBLISH."""

    publish: Publish
    """Its topic is empty where an alias replaces it."""
    identifiers: tuple[int, ...] = ()
    alias: int = 0
    """Topic alias; 0: none."""


ServerPacket: TypeAlias = Acks | Answer | SentMessage


def read_server_packets(data: bytes, *, v5: bool) -> Iterator[tuple[ServerPacket, int]]:
    """Yield the packets of a write, each with the offset of the next one.

    Consecutive acknowledgements of one type, without reasons, are one ``Acks``. Raises
    ``ValueError`` at bytes that are not a whole packet of a server, ``ProtocolError`` at
    properties that no server sends.
    """
    at = 0
    while at < len(data):
        framed = read_length(data, at + 1)
        if framed is None or framed[1] + framed[0] > len(data):
            raise ValueError(f"no whole packet at byte {at}")
        length, body = framed
        stop = body + length
        kind = PacketType(data[at] >> 4)
        if kind in _ACKS and length == 2:
            acks = Acks(kind, [])
            stop = read_acks(data, at, acks)
            yield acks, stop
        elif kind is PacketType.PUBLISH:
            yield read_publish(data[at], data, body, stop, v5=v5), stop
        else:
            yield read_answer(kind, data[body:stop], v5=v5), stop
        at = stop


def count_server_packets(data: bytes, at: int, most: int) -> int:
    """Count the packets from ``at`` on; everything after ``most`` of them counts as one more.

    Raises ``ValueError`` as :func:`read_server_packets` does.
    """
    count = 0
    while at < len(data):
        count += 1
        if count > most:
            break
        framed = read_length(data, at + 1)
        if framed is None:
            raise ValueError(f"no whole packet at byte {at}")
        at = framed[0] + framed[1]
    return count


def read_publish(first: int, data: bytes, body: int, stop: int, *, v5: bool) -> SentMessage:
    """Read a PUBLISH with the first byte ``first`` and the body ``data[body:stop]``."""
    qos = first >> 1 & 3
    begin = body + 2
    end = begin + int.from_bytes(data[body:begin], "big")
    packet_id = int.from_bytes(data[end : end + 2], "big") if qos else 0
    payload_at = end + 2 if qos else end
    identifiers: list[int] = []
    alias = 0
    block = bytearray()
    if v5:
        start, payload_at = find_properties(data, payload_at, stop, "PUBLISH")
        for prop, value, at, after in iter_properties(
            data, start, payload_at, FROM_SERVERS[PacketType.PUBLISH], PacketType.PUBLISH
        ):
            if prop.identifier == SUBSCRIPTION_IDENTIFIER:
                identifiers.append(int(value))  # type: ignore[arg-type]  # a number
            elif prop.identifier == TOPIC_ALIAS:
                alias = int(value)  # type: ignore[arg-type]  # a number
            else:
                block += data[at:after]
    flags = bool(first & 1), bool(first & 8)
    publish = Publish(data[begin:end], data[payload_at:stop], qos, *flags, packet_id, bytes(block))
    return SentMessage(publish, tuple(identifiers), alias)


def read_answer(kind: PacketType, body: bytes, *, v5: bool) -> Answer:
    """Read the body of a packet that is neither a PUBLISH nor one of a client."""
    if kind not in FROM_SERVERS or kind in _FROM_CLIENTS_ONLY or (not v5 and kind in _V5_ONLY):
        raise ValueError(f"{kind.name}, which no server sends")
    answer = Answer(kind)
    at = 0
    if kind is PacketType.CONNACK:
        answer.session_present = bool(body[0])
        at = 1
    elif kind in _ACKS or kind in _WITH_CODES:
        answer.packet_id = int.from_bytes(body[:2], "big")
        at = 2
    if kind not in _WITH_CODES and at < len(body):
        answer.reason = body[at]
        at += 1
    if v5 and at < len(body):
        start, at = find_properties(body, at, len(body), kind.name)
        answer.properties, answer.user = decode_properties(
            body, start, at, FROM_SERVERS[kind], kind
        )
    answer.codes = body[at:]
    return answer
