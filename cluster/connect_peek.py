"""Finds the client identifier in the first bytes of a connection (section 3.1 of MQTT)."""

from enum import Enum

from protocol.mqtt.field_reader import FieldReader
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.remaining_length import read_length

_CONNECT = 0x10
_MQTT_5 = 5


class Peeked(Enum):
    """What the bytes contain when they contain no client identifier."""

    INCOMPLETE = "incomplete"
    NONE = "none"
    """No valid CONNECT: any process can answer it."""


def client_id_in(data: bytes) -> str | Peeked:
    """Return the client identifier of a CONNECT that begins with these bytes."""
    if data and data[0] != _CONNECT:
        return Peeked.NONE
    try:
        framed = read_length(data, 1)
    except ProtocolError:
        return Peeked.NONE
    if framed is None:
        return Peeked.INCOMPLETE
    length, at = framed
    try:
        return _client_id(data[at : at + length]).decode()
    except UnicodeDecodeError:
        return Peeked.NONE
    except ProtocolError:
        # A whole packet that is too short for its fields is malformed.
        return Peeked.NONE if len(data) >= at + length else Peeked.INCOMPLETE


def _client_id(body: bytes) -> bytes:
    """Return the field of a CONNECT; raises ProtocolError if it is not there yet."""
    fields = FieldReader(body, "CONNECT")
    fields.binary("protocol name", "")
    level = fields.byte("protocol level")
    fields.byte("connect flags")
    fields.number("keep alive")
    if level == _MQTT_5:
        fields.property_bytes()
    return fields.binary("client identifier", "")
