"""Encoder of the packets of an MQTT 5 client: of bridges to other brokers, and of tests."""

from protocol.mqtt import property_table as table
from protocol.mqtt.client_packet_encoder import field_bytes, packet_bytes
from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.encoder import PID_BYTES
from protocol.mqtt.packets import (
    Auth,
    Connect,
    ConnectProperties,
    Disconnect,
    Subscribe,
    Unsubscribe,
)
from protocol.mqtt.property_codec import Value, encode_properties, with_length


def encode_connect_v5(connect: Connect) -> bytes:
    """Encode a CONNECT (section 3.1)."""
    will = connect.will
    flags = connect.clean << 1
    parts = [field_bytes(connect.client_id.encode())]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        delay = encode_properties({table.WILL_DELAY: will.delay or None})
        parts += (
            with_length(delay + will.block),
            field_bytes(will.topic.encode()),
            field_bytes(will.payload),
        )
    if connect.username is not None:
        flags |= 0x80
        parts.append(field_bytes(connect.username.encode()))
    if connect.password is not None:
        flags |= 0x40
        parts.append(field_bytes(connect.password))
    block = _connect_block(connect.properties) if connect.properties is not None else b""
    head = b"\0\4MQTT" + bytes((MQTT_5, flags)) + PID_BYTES[connect.keep_alive]
    return packet_bytes(0x10, head, with_length(block), *parts)


def _connect_block(properties: ConnectProperties) -> bytes:
    """Encode the properties of a CONNECT that differ from the defaults."""
    problem = None if properties.request_problem_information else 0
    receive = properties.receive_maximum
    values: dict[int, Value | None] = {
        table.SESSION_EXPIRY: properties.session_expiry or None,
        table.RECEIVE_MAXIMUM: None if receive == 65_535 else receive,
        table.MAXIMUM_PACKET_SIZE: properties.maximum_packet_size or None,
        table.TOPIC_ALIAS_MAXIMUM: properties.topic_alias_maximum or None,
        table.REQUEST_RESPONSE_INFORMATION: int(properties.request_response_information) or None,
        table.REQUEST_PROBLEM_INFORMATION: problem,
        table.AUTHENTICATION_METHOD: properties.authentication_method,
        table.AUTHENTICATION_DATA: properties.authentication_data,
    }
    return encode_properties(values, properties.user)


def encode_publish_v5(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    packet_id: int = 0,
    *,
    retain: bool = False,
    dup: bool = False,
    block: bytes = b"",
) -> bytes:
    """Encode one PUBLISH (section 3.3); ``packet_id`` is ignored at QoS 0."""
    number = PID_BYTES[packet_id] if qos else b""
    first = 0x30 | dup << 3 | qos << 1 | retain
    return packet_bytes(first, field_bytes(topic), number, with_length(block), payload)


def encode_subscribe_v5(subscribe: Subscribe) -> bytes:
    """Encode a SUBSCRIBE (section 3.8)."""
    block = encode_properties(
        {table.SUBSCRIPTION_IDENTIFIER: subscribe.identifier or None}, subscribe.user
    )
    options = subscribe.options or [0] * len(subscribe.filters)
    parts = [PID_BYTES[subscribe.packet_id], with_length(block)]
    for (topic_filter, qos), more in zip(subscribe.filters, options, strict=True):
        parts += (field_bytes(topic_filter.encode()), bytes((qos | more,)))
    return packet_bytes(0x82, *parts)


def encode_unsubscribe_v5(unsubscribe: Unsubscribe) -> bytes:
    """Encode an UNSUBSCRIBE (section 3.10)."""
    block = with_length(encode_properties({}, unsubscribe.user))
    filters = (field_bytes(topic_filter.encode()) for topic_filter in unsubscribe.filters)
    return packet_bytes(0xA2, PID_BYTES[unsubscribe.packet_id], block, *filters)


def encode_disconnect(packet: Disconnect) -> bytes:
    """Encode a DISCONNECT (section 3.14), in its shortest form."""
    values: dict[int, Value | None] = {
        table.SESSION_EXPIRY: packet.session_expiry,
        table.REASON_STRING: packet.reason_string,
    }
    block = encode_properties(values, packet.user)
    if block:
        return packet_bytes(0xE0, bytes((packet.reason,)), with_length(block))
    return packet_bytes(0xE0, bytes((packet.reason,))) if packet.reason else b"\xe0\0"


def encode_auth(packet: Auth) -> bytes:
    """Encode an AUTH (section 3.15)."""
    values: dict[int, Value | None] = {
        table.AUTHENTICATION_METHOD: packet.method,
        table.AUTHENTICATION_DATA: packet.data,
        table.REASON_STRING: packet.reason_string,
    }
    return packet_bytes(
        0xF0, bytes((packet.reason,)), with_length(encode_properties(values, packet.user))
    )
