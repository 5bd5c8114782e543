"""Encodes the packets of clients from the values that the decoder returns."""

from collections.abc import Iterable

from protocol.mqtt.connect_subscribe_decoder import MQTT_3_1
from protocol.mqtt.encoder import PID_BYTES
from protocol.mqtt.packets import Connect, Subscribe, Unsubscribe
from protocol.mqtt.remaining_length import encode_length


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
    return _packet(first, (_field(topic), number, payload))


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
    fixed = bytes((connect.version, flags)) + PID_BYTES[connect.keep_alive]
    return _packet(0x10, (_field(name), fixed, *map(_field, fields)))


def encode_subscribe(subscribe: Subscribe) -> bytes:
    """Encode a SUBSCRIBE (section 3.8)."""
    parts = [PID_BYTES[subscribe.packet_id]]
    for topic_filter, qos in subscribe.filters:
        parts += (_field(topic_filter.encode()), bytes((qos,)))
    return _packet(0x82, parts)


def encode_unsubscribe(unsubscribe: Unsubscribe) -> bytes:
    """Encode an UNSUBSCRIBE (section 3.10)."""
    filters = (_field(topic_filter.encode()) for topic_filter in unsubscribe.filters)
    return _packet(0xA2, (PID_BYTES[unsubscribe.packet_id], *filters))


def _field(raw: bytes) -> bytes:
    return PID_BYTES[len(raw)] + raw


def _packet(first: int, parts: Iterable[bytes]) -> bytes:
    body = b"".join(parts)
    return bytes((first,)) + encode_length(len(body)) + body


def bytewise(data: bytes) -> list[bytes]:
    return [data[at : at + 1] for at in range(len(data))]
