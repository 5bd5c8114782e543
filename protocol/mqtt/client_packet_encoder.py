"""Encoder of the packets of an MQTT 3.1 or 3.1.1 client: of bridges to other brokers, and of tests.

Acknowledgements, PINGREQ and DISCONNECT are those of ``protocol.mqtt.encoder``.
"""

from typing import Final

from protocol.mqtt.connect_decoder import MQTT_3_1
from protocol.mqtt.encoder import PID_BYTES
from protocol.mqtt.packets import Connect, Subscribe, Unsubscribe
from protocol.mqtt.remaining_length import encode_length

BRIDGE_BIT: Final = 0x80
"""Bit of the protocol level with which a bridge connects before MQTT 5."""


def encode_connect(connect: Connect) -> bytes:
    """Encode a CONNECT at the level ``connect.version`` (section 3.1)."""
    will = connect.will
    flags = connect.clean << 1
    fields = [connect.client_id.encode()]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        fields += (will.topic.encode(), will.payload)
    if connect.username is not None:
        flags |= 0x80
        fields.append(connect.username.encode())
    if connect.password is not None:
        flags |= 0x40
        fields.append(connect.password)
    name = b"MQIsdp" if connect.version == MQTT_3_1 else b"MQTT"
    level = connect.version | BRIDGE_BIT if connect.bridge else connect.version
    fixed = bytes((level, flags)) + PID_BYTES[connect.keep_alive]
    return packet_bytes(0x10, field_bytes(name), fixed, *map(field_bytes, fields))


def encode_publish(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    packet_id: int = 0,
    *,
    retain: bool = False,
    dup: bool = False,
) -> bytes:
    """Encode one PUBLISH (section 3.3); ``packet_id`` is ignored at QoS 0."""
    first = 0x30 | dup << 3 | qos << 1 | retain
    number = PID_BYTES[packet_id] if qos else b""
    return packet_bytes(first, field_bytes(topic), number, payload)


def encode_subscribe(subscribe: Subscribe) -> bytes:
    """Encode a SUBSCRIBE (section 3.8)."""
    parts = [PID_BYTES[subscribe.packet_id]]
    for topic_filter, qos in subscribe.filters:
        parts += (field_bytes(topic_filter.encode()), bytes((qos,)))
    return packet_bytes(0x82, *parts)


def encode_unsubscribe(unsubscribe: Unsubscribe) -> bytes:
    """Encode an UNSUBSCRIBE (section 3.10)."""
    filters = (field_bytes(topic_filter.encode()) for topic_filter in unsubscribe.filters)
    return packet_bytes(0xA2, PID_BYTES[unsubscribe.packet_id], *filters)


def field_bytes(raw: bytes) -> bytes:
    """Encode a text or binary field: its length in two bytes before it.

    Raises ``IndexError`` above 65,535 bytes.
    """
    return PID_BYTES[len(raw)] + raw


def packet_bytes(first: int, *parts: bytes) -> bytes:
    """Return a packet of a first byte and the parts of its body."""
    body = b"".join(parts)
    return bytes((first,)) + encode_length(len(body)) + body
