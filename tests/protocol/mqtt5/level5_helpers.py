"""What the tests of level 5 share."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from catalogue5 import ALIASES

from protocol.mqtt import (
    PINGREQ,
    Acks,
    Auth,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Publishes,
    Subscribe,
    Unsubscribe,
)
from protocol.mqtt5 import client_writer as writer
from protocol.mqtt5.answers import acks
from protocol.mqtt5.level_reader import LevelReader

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.mqtt import ProtocolError

    Item = Packet | Publish


def decoder5(limit: int, **more: int) -> Decoder:
    return Decoder(limit, level5=partial(LevelReader, ALIASES), **more)


def flat5(packets: Iterable[Packet]) -> list[Packet | Publish]:
    """One item per packet, however the packets were put into batches."""
    items: list[Packet | Publish] = []
    for packet in packets:
        if isinstance(packet, Publishes):
            assert packet.blocks is not None
            assert len(packet.blocks) in (0, len(packet))
            assert len(packet.packets) in (0, len(packet))
            assert len(packet.packet_ids) == (len(packet) if packet.qos else 0)
            items += packet
        elif isinstance(packet, Acks):
            assert len(packet.reasons) in (0, len(packet))
            reasons = packet.reasons or [0] * len(packet)
            pairs = zip(packet.packet_ids, reasons, strict=True)
            items += [Acks(packet.kind, [pid], [why] if why else ()) for pid, why in pairs]
        else:
            items.append(packet)
    return items


def decode5(pieces: Iterable[bytes], limit: int) -> tuple[list[Item], ProtocolError | None]:
    decoder = decoder5(limit)
    items: list[Packet | Publish] = []
    for piece in pieces:
        failed = decoder.error is not None
        packets = decoder.feed(piece)
        assert not (failed and packets)
        assert all(len(packet) for packet in packets if isinstance(packet, Publishes | Acks))
        items += flat5(packets)
    return items, decoder.error


def encode5(packet: Packet | Publish) -> bytes:
    """What a client sends for this packet."""
    match packet:
        case Connect():
            return writer.encode_connect(packet)
        case Publish(topic, payload, qos, retain, dup, packet_id, block):
            return writer.encode_publish(
                topic, payload, qos, packet_id, retain=retain, dup=dup, block=block
            )
        case Publishes():
            return b"".join(map(encode5, packet))
        case Acks():
            return acks(packet.kind, packet.packet_ids, packet.reasons)
        case Subscribe():
            return writer.encode_subscribe(packet)
        case Unsubscribe():
            return writer.encode_unsubscribe(packet)
        case Pingreq():
            return PINGREQ
        case Disconnect():
            return writer.encode_disconnect(packet)
        case Auth():
            return writer.encode_auth(packet)
