"""Encoder of the packets of a client: of bridges to other brokers, and of tests.

Acknowledgements, PINGREQ and DISCONNECT are those of ``protocol.mqtt.encoder``.
"""

from typing import Final

from protocol.mqtt import property_table as table
from protocol.mqtt.connect_decoder import MQTT_3_1, MQTT_5
from protocol.mqtt.encoder import PID_BYTES
from protocol.mqtt.packets import Connect, ConnectProperties, Subscribe
from protocol.mqtt.property_codec import Value, encode_properties, with_length
from protocol.mqtt.remaining_length import encode_length

BRIDGE_BIT: Final = 0x80
"""Bit of the protocol level with which a bridge connects before MQTT 5."""


def encode_connect(connect: Connect) -> bytes:
    """Encode a CONNECT at the level ``connect.version`` (section 3.1)."""
    will, v5 = connect.will, connect.version == MQTT_5
    flags = connect.clean << 1
    parts = [field_bytes(connect.client_id.encode())]
    if will is not None:
        flags |= 0x04 | will.qos << 3 | will.retain << 5
        if v5:
            delay = encode_properties({table.WILL_DELAY: will.delay or None})
            parts.append(with_length(delay + will.block))
        parts += (field_bytes(will.topic.encode()), field_bytes(will.payload))
    if connect.username is not None:
        flags |= 0x80
        parts.append(field_bytes(connect.username.encode()))
    if connect.password is not None:
        flags |= 0x40
        parts.append(field_bytes(connect.password))
    name = b"MQIsdp" if connect.version == MQTT_3_1 else b"MQTT"
    level = connect.version | BRIDGE_BIT if connect.bridge and not v5 else connect.version
    head = field_bytes(name) + bytes((level, flags)) + PID_BYTES[connect.keep_alive]
    if v5:
        properties = connect.properties
        head += with_length(_connect_block(properties) if properties is not None else b"")
    return packet_bytes(0x10, head, *parts)


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


def encode_publish(
    topic: bytes,
    payload: bytes,
    qos: int = 0,
    packet_id: int = 0,
    *,
    retain: bool = False,
    dup: bool = False,
    block: bytes | None = None,
) -> bytes:
    """Encode one PUBLISH (section 3.3); ``packet_id`` is ignored at QoS 0.

    ``block`` is None before MQTT 5.
    """
    first = 0x30 | dup << 3 | qos << 1 | retain
    number = PID_BYTES[packet_id] if qos else b""
    properties = b"" if block is None else with_length(block)
    return packet_bytes(first, field_bytes(topic), number, properties, payload)


def encode_subscribe(subscribe: Subscribe, *, v5: bool = False) -> bytes:
    """Encode a SUBSCRIBE (section 3.8)."""
    parts = [PID_BYTES[subscribe.packet_id]]
    if v5:
        identifier = {table.SUBSCRIPTION_IDENTIFIER: subscribe.identifier or None}
        parts.append(with_length(encode_properties(identifier, subscribe.user)))
    options = subscribe.options or [0] * len(subscribe.filters)
    for (topic_filter, qos), more in zip(subscribe.filters, options, strict=True):
        parts += (field_bytes(topic_filter.encode()), bytes((qos | more,)))
    return packet_bytes(0x82, *parts)


def field_bytes(raw: bytes) -> bytes:
    """Encode a text or binary field: its length in two bytes before it.

    Raises ``IndexError`` above 65,535 bytes.
    """
    return PID_BYTES[len(raw)] + raw


def packet_bytes(first: int, *parts: bytes) -> bytes:
    """Return a packet of a first byte and the parts of its body."""
    body = b"".join(parts)
    return bytes((first,)) + encode_length(len(body)) + body
