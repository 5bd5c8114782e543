"""Helpers of the codec tests."""

from collections.abc import Iterable

from protocol.mqtt.client_packet_encoder import (
    encode_connect,
    encode_publish,
    encode_subscribe,
    field_bytes,
    packet_bytes,
)
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.encoder import DISCONNECT, PID_BYTES, PINGREQ, encode_acks
from protocol.mqtt.packets import (
    Acks,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Publish,
    Publishes,
    Subscribe,
    Unsubscribe,
)
from protocol.mqtt.protocol_error import ProtocolError


def flat(packets: Iterable[Packet]) -> list[Packet | Publish]:
    """One item per packet, however the packets were put into batches."""
    items: list[Packet | Publish] = []
    for packet in packets:
        if isinstance(packet, Publishes):
            items += packet
        elif isinstance(packet, Acks):
            items += [Acks(packet.kind, [packet_id]) for packet_id in packet.packet_ids]
        else:
            items.append(packet)
    return items


def decode(
    pieces: Iterable[bytes], max_packet_size: int
) -> tuple[list[Packet | Publish], ProtocolError | None]:
    decoder = Decoder(max_packet_size)
    items: list[Packet | Publish] = []
    for piece in pieces:
        failed = decoder.error is not None
        packets = decoder.feed(piece)
        assert not (failed and packets)
        assert all(len(packet) for packet in packets if isinstance(packet, Publishes | Acks))
        items += flat(packets)
    return items, decoder.error


def encode(packet: Packet | Publish) -> bytes:
    """What a client sends for this packet."""
    match packet:
        case Connect():
            return encode_connect(packet)
        case Publish(topic, payload, qos, retain, dup, packet_id):
            return encode_publish(topic, payload, qos, packet_id, retain=retain, dup=dup)
        case Publishes():
            return b"".join(map(encode, packet))
        case Acks(kind, packet_ids):
            return encode_acks(kind, packet_ids)
        case Subscribe():
            return encode_subscribe(packet)
        case Unsubscribe():
            filters = (field_bytes(one.encode()) for one in packet.filters)
            return packet_bytes(0xA2, PID_BYTES[packet.packet_id], *filters)
        case Pingreq():
            return PINGREQ
        case Disconnect():
            return DISCONNECT
