"""Finds the client identifier in the first bytes of a connection (section 3.1 of MQTT)."""

from enum import Enum

_CONNECT = 0x10
_MQTT_5 = 5
_MAX_LENGTH = 4
"""Bytes of the remaining length, and of the length of the properties."""


class Peeked(Enum):
    """What the bytes contain when they contain no client identifier."""

    INCOMPLETE = "incomplete"
    NONE = "none"
    """No valid CONNECT: any process can answer it."""


def client_id_in(data: bytes) -> str | Peeked:
    """Return the client identifier of a CONNECT that begins with these bytes."""
    if not data:
        return Peeked.INCOMPLETE
    if data[0] != _CONNECT:
        return Peeked.NONE
    at = _after_length(data, 1)
    if not isinstance(at, int):
        return at
    end = at + _length(data, 1)
    found = _client_id(data[:end], at)
    # A whole packet that is too short for its fields is malformed.
    return Peeked.NONE if found is Peeked.INCOMPLETE and len(data) >= end else found


def _client_id(data: bytes, at: int) -> str | Peeked:
    """Return the client identifier of a CONNECT whose variable header begins at an offset."""
    name = _field(data, at)
    if not isinstance(name, bytes):
        return name
    at += 2 + len(name) + 4  # level, flags and keep alive
    if len(data) < at:
        return Peeked.INCOMPLETE
    if data[at - 4] == _MQTT_5:
        start = _after_length(data, at)
        if not isinstance(start, int):
            return start
        at = start + _length(data, at)
    identifier = _field(data, at)
    if not isinstance(identifier, bytes):
        return identifier
    try:
        return identifier.decode()
    except UnicodeDecodeError:
        return Peeked.NONE


def _after_length(data: bytes, at: int) -> int | Peeked:
    """Return the offset behind a variable byte integer."""
    for end in range(at, at + _MAX_LENGTH):
        if end >= len(data):
            return Peeked.INCOMPLETE
        if data[end] < 0x80:
            return end + 1
    return Peeked.NONE


def _length(data: bytes, at: int) -> int:
    """Return a variable byte integer."""
    value = shift = 0
    while True:
        value |= (data[at] & 0x7F) << shift
        if data[at] < 0x80:
            return value
        at, shift = at + 1, shift + 7


def _field(data: bytes, at: int) -> bytes | Peeked:
    """Return a field with a length of two bytes."""
    if len(data) < at + 2:
        return Peeked.INCOMPLETE
    stop = at + 2 + int.from_bytes(data[at : at + 2], "big")
    return data[at + 2 : stop] if stop <= len(data) else Peeked.INCOMPLETE
