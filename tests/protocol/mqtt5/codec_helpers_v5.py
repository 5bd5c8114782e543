"""Helpers of the tests of level 5."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from harness.catalogue_v5 import ALIASES

from protocol.mqtt import property_table as table
from protocol.mqtt.client_packet_encoder import (
    encode_connect,
    encode_publish,
    encode_subscribe,
    field_bytes,
    packet_bytes,
)
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.decoder_v5 import PacketDecoderV5
from protocol.mqtt.encoder import PID_BYTES, PINGREQ
from protocol.mqtt.packets import (
    Acks,
    Auth,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Publishes,
    Subscribe,
    Unsubscribe,
)
from protocol.mqtt.property_codec import Value, encode_properties, with_length
from protocol.mqtt.server_packet_encoder_v5 import encode_acks_v5

if TYPE_CHECKING:
    from collections.abc import Iterable

    from protocol.mqtt.protocol_error import ProtocolError

    Item = Packet | Publish


def encode_unsubscribe(unsubscribe: Unsubscribe) -> bytes:
    block = with_length(encode_properties({}, unsubscribe.user))
    filters = (field_bytes(topic_filter.encode()) for topic_filter in unsubscribe.filters)
    return packet_bytes(0xA2, PID_BYTES[unsubscribe.packet_id], block, *filters)


def encode_disconnect(packet: Disconnect) -> bytes:
    values: dict[int, Value | None] = {
        table.SESSION_EXPIRY: packet.session_expiry,
        table.REASON_STRING: packet.reason_string,
    }
    block = encode_properties(values, packet.user)
    if block:
        return packet_bytes(0xE0, bytes((packet.reason,)), with_length(block))
    return packet_bytes(0xE0, bytes((packet.reason,))) if packet.reason else b"\xe0\0"


def encode_auth(packet: Auth) -> bytes:
    values: dict[int, Value | None] = {
        table.AUTHENTICATION_METHOD: packet.method,
        table.AUTHENTICATION_DATA: packet.data,
        table.REASON_STRING: packet.reason_string,
    }
    return packet_bytes(
        0xF0, bytes((packet.reason,)), with_length(encode_properties(values, packet.user))
    )


def decoder_v5(limit: int, **more: int) -> Decoder:
    return Decoder(limit, v5=partial(PacketDecoderV5, ALIASES), **more)


def flat_v5(packets: Iterable[Packet]) -> list[Packet | Publish]:
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


def decode_v5(pieces: Iterable[bytes], limit: int) -> tuple[list[Item], ProtocolError | None]:
    decoder = decoder_v5(limit)
    items: list[Packet | Publish] = []
    for piece in pieces:
        failed = decoder.error is not None
        packets = decoder.feed(piece)
        assert not (failed and packets)
        assert all(len(packet) for packet in packets if isinstance(packet, Publishes | Acks))
        items += flat_v5(packets)
    return items, decoder.error


def encode_v5(packet: Packet | Publish) -> bytes:
    """What a client sends for this packet."""
    match packet:
        case Connect():
            return encode_connect(packet)
        case Publish(topic, payload, qos, retain, dup, packet_id, block):
            return encode_publish(
                topic, payload, qos, packet_id, retain=retain, dup=dup, block=block
            )
        case Publishes():
            return b"".join(map(encode_v5, packet))
        case Acks():
            return encode_acks_v5(packet.kind, packet.packet_ids, packet.reasons)
        case Subscribe():
            return encode_subscribe(packet, v5=True)
        case Unsubscribe():
            return encode_unsubscribe(packet)
        case Pingreq():
            return PINGREQ
        case Disconnect():
            return encode_disconnect(packet)
        case Auth():
            return encode_auth(packet)
