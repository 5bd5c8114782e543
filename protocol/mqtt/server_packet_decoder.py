"""Decoder of the packets of a server, for traces.

The bytes are whole packets that the broker itself wrote: properties that the encoder guarantees are
not checked. Packets are read lazily, so that a caller that needs only the first few does not pay
for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from protocol.mqtt.packets import Acks, PacketType, Publish
from protocol.mqtt.publish_decoder import read_acks
from protocol.mqtt.remaining_length import read_length

if TYPE_CHECKING:
    from collections.abc import Iterator

_ACKS = frozenset({PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP})


@dataclass(slots=True)
class Connack:
    """The answer to a CONNECT (section 3.2)."""

    code: int
    session_present: bool


@dataclass(slots=True)
class Suback:
    """The answer to a SUBSCRIBE (section 3.9)."""

    packet_id: int
    codes: bytes
    """The granted QoS, or 0x80, for each filter."""


@dataclass(slots=True)
class Unsuback:
    """The answer to an UNSUBSCRIBE (section 3.11)."""

    packet_id: int


@dataclass(slots=True)
class Pingresp:
    """The answer to a PINGREQ (section 3.13)."""


ServerPacket: TypeAlias = Connack | Publish | Acks | Suback | Unsuback | Pingresp


def read_server_packets(data: bytes) -> Iterator[tuple[ServerPacket, int]]:
    """Yield the packets of a write, each with the offset of the next one.

    Consecutive acknowledgements of one type are one ``Acks``. Raises ``ValueError`` at bytes that
    are not a whole packet of a server.
    """
    at = 0
    while at < len(data):
        framed = read_length(data, at + 1)
        if framed is None or framed[1] + framed[0] > len(data):
            raise ValueError(f"no whole packet at byte {at}")
        length, body = framed
        kind = PacketType(data[at] >> 4)
        if kind in _ACKS and length == 2:
            acks = Acks(kind, [])
            at = read_acks(data, at, acks)
            yield acks, at
            continue
        packet = _read(kind, data, at, body, body + length)
        at = body + length
        yield packet, at


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


def _read(kind: PacketType, data: bytes, at: int, body: int, stop: int) -> ServerPacket:
    if kind is PacketType.PUBLISH:
        return _read_publish(data[at], data, body, stop)
    if kind is PacketType.PINGRESP:
        return Pingresp()
    number = int.from_bytes(data[body : body + 2], "big")
    if kind is PacketType.CONNACK:
        return Connack(number & 0xFF, bool(number >> 8))
    if kind is PacketType.SUBACK:
        return Suback(number, data[body + 2 : stop])
    if kind is PacketType.UNSUBACK:
        return Unsuback(number)
    raise ValueError(f"{kind.name}, which no server sends")


def _read_publish(first: int, data: bytes, body: int, stop: int) -> Publish:
    qos = first >> 1 & 3
    begin = body + 2
    end = begin + int.from_bytes(data[body:begin], "big")
    packet_id = int.from_bytes(data[end : end + 2], "big") if qos else 0
    payload = data[end + 2 if qos else end : stop]
    return Publish(data[begin:end], payload, qos, bool(first & 1), bool(first & 8), packet_id)
