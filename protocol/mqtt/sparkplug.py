"""The rules for an MQTT server that is "Sparkplug aware" (Sparkplug 3.0.0, section 10.1.4).

Such a server stores birth certificates: messages published to ``spBv1.0/GROUP/NBIRTH/NODE`` and
``spBv1.0/GROUP/DBIRTH/NODE/DEVICE`` are also available, retained, below
``$sparkplug/certificates``. It may also set the time of a death certificate when it sends it, since
the node wrote its will when it connected.

Differences to the NATS Server:

- it accepts 4 or 5 levels for any of the four types; here NBIRTH and NDEATH have 4 and DBIRTH and
  DDEATH 5, none of them empty, as in the specification;
- it adds a missing timestamp at the end of a payload, here it is put first; both are legal;
- of several timestamps it sets the first, although readers take the last; here all are set;
- it adds a timestamp to an empty payload; here it stays empty: it is not a certificate, and a
  retained one clears the topic.
"""

from typing import Final

from protocol.mqtt.topics import MAX_TOPIC_BYTES, split_levels

CERTIFICATES: Final = "$sparkplug/certificates/"
MAX_DEATH: Final = 65_535
"""Size in bytes of the longest payload in which a time is set: the longest possible will."""
MAX_FIELDS: Final = 1000
"""Largest number of fields of such a payload; the death of a node has one metric, its ``bdSeq``."""

_NAMESPACE: Final = "spBv1.0/"
_BIRTHS: Final = {"NBIRTH": 4, "DBIRTH": 5}
_DEATHS: Final = {"NDEATH": 4, "DDEATH": 5}

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_TIMESTAMP: Final = 1
_MAX_FIELD: Final = (1 << 29) - 1
_UINT64: Final = (1 << 64) - 1


def certificate_topic(topic: str) -> str | None:
    """Return the topic of the stored birth certificate, None if ``topic`` is not for one."""
    if not _is_one_of(_BIRTHS, topic):
        return None
    certificate = CERTIFICATES + topic
    return certificate if len(certificate.encode()) <= MAX_TOPIC_BYTES else None


def is_death(topic: str) -> bool:
    """Return whether death certificates are published to ``topic``."""
    return _is_one_of(_DEATHS, topic)


def with_timestamp(payload: bytes, ms: int) -> bytes:
    """Set the time of a certificate to ``ms``, milliseconds since 1970 (UTC).

    The time is field 1 of the protobuf message, a varint. All other bytes stay unchanged. A payload
    that is not a Sparkplug payload, is longer than ``MAX_DEATH`` or has more than ``MAX_FIELDS``
    fields is returned unchanged.
    """
    if not 0 < len(payload) <= MAX_DEATH:
        return payload
    stamp = bytes([_TIMESTAMP << 3 | _VARINT]) + _varint(ms & _UINT64)
    parts: list[bytes] = []
    kept = 0  # offset up to which the payload is in parts
    at = 0
    try:
        for _ in range(MAX_FIELDS):
            if at == len(payload):
                break
            start = at
            number, kind, at = _field(payload, at)
            if number != _TIMESTAMP:
                continue
            if kind != _VARINT:
                return payload
            parts += payload[kept:start], stamp
            kept = at
    except _MalformedError:
        return payload
    if at < len(payload):
        return payload
    if not parts:
        return stamp + payload
    return b"".join([*parts, payload[kept:]])


class _MalformedError(Exception):
    """Not a protobuf message."""


def _is_one_of(types: dict[str, int], topic: str) -> bool:
    if not topic.startswith(_NAMESPACE):
        return False
    levels = split_levels(topic)
    return len(levels) > 2 and len(levels) == types.get(levels[2]) and all(levels)


def _field(data: bytes, at: int) -> tuple[int, int, int]:
    """Return number and wire type of the field at ``at``, and the offset of the next field."""
    tag, at = _read_varint(data, at)
    number, kind = tag >> 3, tag & 7
    if kind == _VARINT:
        _, at = _read_varint(data, at)
    elif kind == _FIXED64:
        at += 8
    elif kind == _BYTES:
        length, at = _read_varint(data, at)
        at += length
    elif kind == _FIXED32:
        at += 4
    else:  # groups, which Sparkplug does not use
        raise _MalformedError
    if not 0 < number <= _MAX_FIELD or at > len(data):
        raise _MalformedError
    return number, kind, at


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    if at < len(data) and data[at] < 0x80:  # most are one byte
        return data[at], at + 1
    value = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            if value > _UINT64:
                break
            return value, at
    raise _MalformedError


def _varint(value: int) -> bytes:
    data = bytearray()
    while value > 0x7F:
        data.append(value & 0x7F | 0x80)
        value >>= 7
    data.append(value)
    return bytes(data)
