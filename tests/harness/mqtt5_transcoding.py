"""Converts packets of MQTT 3.1.1 to MQTT 5 and back, so that the same clients can use either."""

from collections.abc import Iterator

from protocol.mqtt.reason_codes import FOR_CONNECT_CODES
from protocol.mqtt.remaining_length import encode_length, read_length

NEVER = b"\x05\x11\xff\xff\xff\xff"
"""Properties: the session does not expire."""
USER_PROPERTY = b"\x0b\x26\x00\x04name\x00\x02it"
"""Properties: a user property of a message. 12 bytes."""

_CONNECT_CODES = {code.value: old.value for old, code in FOR_CONNECT_CODES.items()}
"""Reason code of a CONNACK -> return code of MQTT 3.1.1; any other: server unavailable."""


def packets_of(data: bytes) -> Iterator[tuple[int, bytes]]:
    """Yield first byte and body of each of some whole packets."""
    at = 0
    while at < len(data):
        framed = read_length(data, at + 1)
        assert framed is not None, data
        length, body = framed
        yield data[at], data[body : body + length]
        at = body + length


def _packet(first: int, body: bytes) -> bytes:
    return bytes((first,)) + encode_length(len(body)) + body


def _field(body: bytes, at: int) -> int:
    """Return where the field with a length ends that begins at an offset."""
    return at + 2 + int.from_bytes(body[at : at + 2], "big")


def to_v5(data: bytes) -> bytes:
    """Return what a client at level 5 sends in place of some whole packets of MQTT 3.1.1."""
    return b"".join(_packet(first, _to_v5(first, body)) for first, body in packets_of(data))


def _to_v5(first: int, body: bytes) -> bytes:
    kind = first >> 4
    if kind == 1:
        name_end = _field(body, 0)
        flags = body[name_end + 1]
        client_at = name_end + 4
        client_end = _field(body, client_at)
        clean, will = flags & 2, flags & 4
        head = body[:name_end] + b"\5" + body[name_end + 1 : client_at]
        properties = b"\0" if clean else NEVER
        return (
            head
            + properties
            + body[client_at:client_end]
            + (b"\0" if will else b"")
            + body[client_end:]
        )
    if kind == 3:
        begin = _field(body, 0) + (2 if first & 6 else 0)
        some = USER_PROPERTY if len(body) % 3 == 0 else b"\0"
        return body[:begin] + some + body[begin:]
    if kind in (8, 10):
        return body[:2] + b"\0" + body[2:]
    return body


def from_v5(data: bytes) -> bytes:
    """Return what a broker sends at MQTT 3.1.1 in place of some whole packets of level 5.

    A DISCONNECT has nothing in its place.
    """
    return b"".join(_from_v5(first, body) for first, body in packets_of(data))


def _from_v5(first: int, body: bytes) -> bytes:
    kind = first >> 4
    if kind == 2:
        return _packet(first, bytes((body[0], _CONNECT_CODES.get(body[1], 3))))
    if kind == 3:
        begin = _field(body, 0) + (2 if first & 6 else 0)
        return _packet(first, body[:begin] + body[_end_of_block(body, begin) :])
    if kind in (4, 5, 6, 7):
        assert len(body) == 2 or body[2] < 0x80 or body[2] == 0x92, (first, body)
        return _packet(first, body[:2])
    if kind == 9:
        codes = body[_end_of_block(body, 2) :]
        return _packet(first, body[:2] + bytes(min(code, 0x80) for code in codes))
    if kind == 11:
        return _packet(first, body[:2])
    return b"" if kind == 14 else _packet(first, body)


def _end_of_block(body: bytes, at: int) -> int:
    framed = read_length(body, at)
    assert framed is not None, body
    return framed[0] + framed[1]
