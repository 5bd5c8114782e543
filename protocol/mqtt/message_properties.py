"""The properties of messages: of a PUBLISH, and of a will.

They pass through the broker as a *block*: the bytes in which they arrived, checked once, without
the Topic Alias, and with the Message Expiry Interval first. ``ReceivedProperties`` is the result of
reading them from a client: the block, and beside it what the broker itself obeys. The same
properties recur from message to message, so results are cached by the bytes received.
``MessageProperties`` has the values in a block, for uses other than MQTT.
"""

from typing import Any, NamedTuple

from protocol.mqtt.packets import PacketType
from protocol.mqtt.property_codec import (
    LARGE_PROPERTIES,
    decode_properties,
    encode_properties,
    encode_property,
    iter_properties,
)
from protocol.mqtt.property_table import (
    CONTENT_TYPE,
    CORRELATION_DATA,
    FROM_CLIENTS,
    MESSAGE_EXPIRY,
    PAYLOAD_FORMAT,
    PROPERTIES,
    RESPONSE_TOPIC,
    TOPIC_ALIAS,
    WILL_DELAY,
    PropertyCarrier,
)
from protocol.mqtt.protocol_error import ProtocolError

_CACHED = 4096
"""Maximum number of received properties that are cached."""


class ReceivedProperties(NamedTuple):
    """The properties of one message, as a client sent them, by their use."""

    block: bytes
    """Those that are forwarded to subscribers: no Topic Alias, Message Expiry Interval first."""
    alias: int
    """Topic Alias; 0: none."""
    expiry: int
    """Message Expiry Interval in seconds; -1: none."""
    is_text: bool
    """Whether the Payload Format Indicator says that the payload is UTF-8."""
    delay: int = 0
    """Will Delay Interval in seconds, of a will."""


_NO_PROPERTIES = ReceivedProperties(b"", 0, -1, False)

known_properties: dict[bytes, ReceivedProperties] = {b"": _NO_PROPERTIES}
"""Properties of clients' PUBLISH packets, read before, by their bytes; shared by all connections.

At most ``_CACHED`` of at most ``LARGE_PROPERTIES`` bytes. The cache only saves time: it may be
emptied at any time.
"""


def read_publish_properties(raw: bytes) -> ReceivedProperties:
    """Read the properties of a PUBLISH from a client; raises ``ProtocolError``."""
    properties = known_properties.get(raw)
    if properties is None:
        properties = split_properties(raw, PacketType.PUBLISH)
        if len(raw) <= LARGE_PROPERTIES:
            if len(known_properties) >= _CACHED:
                known_properties.clear()
                known_properties[b""] = _NO_PROPERTIES
            known_properties[raw] = properties
    return properties


def split_properties(raw: bytes, place: PropertyCarrier) -> ReceivedProperties:
    """Split the properties of a PUBLISH or a ``WILL`` from a client by their use."""
    alias, expiry, delay, is_text = 0, -1, 0, False
    first = b""
    parts: list[bytes] = []
    copied = 0  # raw[:copied] is in parts, or was left out
    for prop, value, begin, end in iter_properties(
        raw, 0, len(raw), FROM_CLIENTS[place], place, user=False
    ):
        identifier = prop.identifier
        if identifier in _PASSED_ON:
            is_text = is_text or (identifier == PAYLOAD_FORMAT and value == 1)
            continue
        parts.append(raw[copied:begin])
        copied = end
        if identifier == MESSAGE_EXPIRY:
            first, expiry = raw[begin:end], int(value)  # type: ignore[arg-type]  # a number
        elif identifier == TOPIC_ALIAS:
            alias = int(value)  # type: ignore[arg-type]  # a number
        else:
            delay = int(value)  # type: ignore[arg-type]  # a number
    parts.append(raw[copied:])
    return ReceivedProperties(first + b"".join(parts), alias, expiry, is_text, delay)


_PASSED_ON = frozenset(PROPERTIES) - {MESSAGE_EXPIRY, TOPIC_ALIAS, WILL_DELAY}


class MessageProperties(NamedTuple):
    """The properties in the block of a message, for uses other than MQTT: NATS, tables, display."""

    payload_format: int = 0
    expiry: int | None = None
    """Seconds."""
    content_type: str | None = None
    response_topic: str | None = None
    correlation: bytes | None = None
    user: tuple[tuple[str, str], ...] = ()


def decode_message_properties(block: bytes) -> MessageProperties:
    """Return the values in a block that was checked before."""
    values, user = decode_properties(
        block, 0, len(block), FROM_CLIENTS[PacketType.PUBLISH], PacketType.PUBLISH
    )
    return MessageProperties(
        values.get(PAYLOAD_FORMAT, 0),  # type: ignore[arg-type]  # so say their kinds
        values.get(MESSAGE_EXPIRY),  # type: ignore[arg-type]
        values.get(CONTENT_TYPE),  # type: ignore[arg-type]
        values.get(RESPONSE_TOPIC),  # type: ignore[arg-type]
        values.get(CORRELATION_DATA),  # type: ignore[arg-type]
        user,
    )


def encode_message_properties(properties: MessageProperties) -> bytes:
    """Return the block of a message with these properties, which must have been checked."""
    values = {
        MESSAGE_EXPIRY: properties.expiry,
        PAYLOAD_FORMAT: properties.payload_format or None,
        CONTENT_TYPE: properties.content_type,
        RESPONSE_TOPIC: properties.response_topic,
        CORRELATION_DATA: properties.correlation,
    }
    return encode_properties(values, properties.user)


def properties_object(block: bytes) -> dict[str, Any]:
    """Return the properties in a message's block by name, for JSON; without the expiry.

    Empty for a block that cannot be read.
    """
    try:
        properties = decode_message_properties(block)
    except ProtocolError:
        return {}
    values = {
        "payload_format": properties.payload_format or None,
        "content_type": properties.content_type,
        "response_topic": properties.response_topic,
        "correlation_data": None
        if properties.correlation is None
        else properties.correlation.hex(),
        "user_properties": [list(pair) for pair in properties.user] or None,
    }
    return {name: value for name, value in values.items() if value is not None}


def expiry_of(block: bytes) -> int | None:
    """Return the Message Expiry Interval of a message's block, in seconds."""
    if block[:1] != _EXPIRY_MARK:
        return None
    return int.from_bytes(block[1:5], "big")


def with_remaining_expiry(block: bytes, seconds: int) -> bytes:
    """Return a block whose Message Expiry Interval, which must be present, is replaced."""
    return encode_property(MESSAGE_EXPIRY, seconds) + block[5:]


def is_payload_format_broken(block: bytes, payload: bytes) -> bool:
    """Return whether a payload is not UTF-8 although its block says so (reason 0x99)."""
    if not read_publish_properties(block).is_text:
        return False
    try:
        payload.decode()
    except UnicodeDecodeError:
        return True
    return False


_EXPIRY_MARK = bytes((MESSAGE_EXPIRY,))
