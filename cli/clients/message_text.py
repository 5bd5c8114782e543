"""A received message as a line of output."""

import base64
import re
from typing import Literal, TypeAlias

import orjson
import paho.mqtt.client as mqtt

from cli.clients.client_errors import BadArgumentError
from cli.common.text import printable
from eventstore.display import escaped

Style: TypeAlias = 'Literal["payload", "verbose", "json"] | Template'


def render(message: mqtt.MQTTMessage, style: Style, *, terminal: bool) -> bytes:
    """Return the line for ``message``, without a newline.

    On a terminal control characters are escaped; otherwise the payload is unchanged.
    """
    if style == "json":
        return _as_json(message)
    if isinstance(style, Template):
        return style.fill(message, terminal=terminal)
    payload = _for_output(bytes(message.payload), terminal=terminal)
    if style == "payload":
        return payload
    return _for_output(message.topic.encode(), terminal=terminal) + b" " + payload


def _for_output(data: bytes, *, terminal: bool) -> bytes:
    if not terminal:
        return data
    text = data.decode("utf-8", "backslashreplace")
    return "\n".join(printable(line) for line in text.split("\n")).encode()


class Template:
    """A line with fields of a message, in the syntax of mosquitto_sub's ``-F``."""

    def __init__(self, text: str) -> None:
        """Parse the template; raises BadArgumentError for an unknown field."""
        self._parts = re.split(r"(%.?|\\.)", text, flags=re.DOTALL)
        for part in self._parts:
            if part.startswith("%") and part[1:] not in _FIELDS:
                raise BadArgumentError(
                    f'-F "{escaped(text)}": there is no field {escaped(part)}; '
                    f"fields are {' '.join(f'%{letter}' for letter in _FIELDS)}"
                )

    def fill(self, message: mqtt.MQTTMessage, *, terminal: bool) -> bytes:
        """Return the line for a message."""
        return b"".join(self._value(part, message, terminal) for part in self._parts)

    def _value(self, part: str, message: mqtt.MQTTMessage, terminal: bool) -> bytes:
        if part.startswith("%"):
            return _for_output(_field(part[1], message), terminal=terminal)
        return _ESCAPES.get(part, part).encode("utf-8", "surrogateescape")


_ESCAPES = {"\\n": "\n", "\\t": "\t", "\\r": "\r", "\\0": "\0", "\\\\": "\\"}
_FIELDS: dict[str, str] = {
    "%": "",
    "t": "topic",
    "p": "payload",
    "l": "length",
    "q": "qos",
    "r": "retain",
    "C": "content_type",
    "D": "correlation_data",
    "E": "message_expiry",
    "F": "payload_format",
    "P": "user_properties",
    "R": "response_topic",
    "S": "subscription_identifiers",
}
"""Meaning of each letter behind ``%``."""


def _field(letter: str, message: mqtt.MQTTMessage) -> bytes:
    """Return a field of a message; empty for a missing property."""
    match letter:
        case "%":
            return b"%"
        case "p":
            return bytes(message.payload)
        case "t" | "q" | "r" | "l":
            return str(
                {
                    "t": message.topic,
                    "q": message.qos,
                    "r": int(message.retain),
                    "l": len(message.payload),
                }[letter]
            ).encode()
    value = message_fields(message).get(_FIELDS[letter], "")
    if isinstance(value, bytes):
        return value
    if letter == "P" and isinstance(value, list):
        return " ".join(f"{name}:{text}" for name, text in value).encode()
    if letter == "S" and isinstance(value, list):
        return " ".join(map(str, value)).encode()
    return str(value).encode()


_NAMES = {
    "PayloadFormatIndicator": "payload_format",
    "MessageExpiryInterval": "message_expiry",
    "ContentType": "content_type",
    "ResponseTopic": "response_topic",
    "CorrelationData": "correlation_data",
    "SubscriptionIdentifier": "subscription_identifiers",
    "UserProperty": "user_properties",
}
"""foldmq's names of the properties of a message."""


def properties_by_name(message: mqtt.MQTTMessage) -> dict[str, object]:
    """Return the properties that another message may have as well, by paho's names."""
    names = _NAMES.keys() - {"SubscriptionIdentifier"}
    return {name: getattr(message.properties, name, None) for name in names}


def message_fields(message: mqtt.MQTTMessage) -> dict[str, object]:
    """Return the properties of a message; user properties in their order."""
    properties = message.properties
    return {
        name: getattr(properties, theirs)
        for theirs, name in _NAMES.items()
        if hasattr(properties, theirs)
    }


def _as_json(message: mqtt.MQTTMessage) -> bytes:
    fields: dict[str, object] = {
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
        **_bytes_as_json("payload", bytes(message.payload)),
    }
    properties = message_fields(message)
    correlation = properties.pop("correlation_data", None)
    if isinstance(correlation, bytes):
        properties.update(_bytes_as_json("correlation_data", correlation))
    if properties:
        fields["properties"] = properties
    return orjson.dumps(fields)


def _bytes_as_json(name: str, data: bytes) -> dict[str, object]:
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        return {f"{name}_base64": base64.b64encode(data).decode("ascii")}
