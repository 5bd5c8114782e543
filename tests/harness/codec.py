"""The decoder of client packets and their encoder, at every level, for the tests of both."""

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


def flat(packets: Iterable[Packet]) -> list[Packet | Publish]:
    """One item per packet, however the packets were put into batches."""
    items: list[Packet | Publish] = []
    for packet in packets:
        if isinstance(packet, Publishes):
            assert len(packet.blocks or ()) in (0, len(packet))
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


def decoder_of(limit: int, *, v5: bool = False, **more: int) -> Decoder:
    return Decoder(limit, v5=partial(PacketDecoderV5, ALIASES) if v5 else None, **more)


def decode(
    pieces: Iterable[bytes], limit: int, *, v5: bool = False
) -> tuple[list[Packet | Publish], ProtocolError | None]:
    decoder = decoder_of(limit, v5=v5)
    items: list[Packet | Publish] = []
    for piece in pieces:
        failed = decoder.error is not None
        packets = decoder.feed(piece)
        assert not (failed and packets)
        assert all(len(packet) for packet in packets if isinstance(packet, Publishes | Acks))
        assert all((one.blocks is not None) == v5 for one in packets if isinstance(one, Publishes))
        items += flat(packets)
    return items, decoder.error


def encode(packet: Packet | Publish, *, v5: bool = False) -> bytes:
    """What a client sends for this packet."""
    match packet:
        case Connect():
            return encode_connect(packet)
        case Publish(topic, payload, qos, retain, dup, number, block):
            properties = block if v5 else None
            flags = {"retain": retain, "dup": dup}
            return encode_publish(topic, payload, qos, number, block=properties, **flags)
        case Publishes():
            return b"".join(encode(one, v5=v5) for one in packet)
        case Acks():
            return encode_acks_v5(packet.kind, packet.packet_ids, packet.reasons)
        case Subscribe():
            return encode_subscribe(packet, v5=v5)
        case Unsubscribe():
            block = with_length(encode_properties({}, packet.user)) if v5 else b""
            filters = (field_bytes(topic_filter.encode()) for topic_filter in packet.filters)
            return packet_bytes(0xA2, PID_BYTES[packet.packet_id], block, *filters)
        case Pingreq():
            return PINGREQ
        case Disconnect():
            return _encode_disconnect(packet)
        case Auth():
            values: dict[int, Value | None] = {
                table.AUTHENTICATION_METHOD: packet.method,
                table.AUTHENTICATION_DATA: packet.data,
                table.REASON_STRING: packet.reason_string,
            }
            block = with_length(encode_properties(values, packet.user))
            return packet_bytes(0xF0, bytes((packet.reason,)), block)


def _encode_disconnect(packet: Disconnect) -> bytes:
    values: dict[int, Value | None] = {
        table.SESSION_EXPIRY: packet.session_expiry,
        table.REASON_STRING: packet.reason_string,
    }
    block = encode_properties(values, packet.user)
    if block:
        return packet_bytes(0xE0, bytes((packet.reason,)), with_length(block))
    return packet_bytes(0xE0, bytes((packet.reason,))) if packet.reason else b"\xe0\0"


decode_v5 = partial(decode, v5=True)
decoder_v5 = partial(decoder_of, v5=True)
encode_v5 = partial(encode, v5=True)
