"""A second, independent codec of MQTT 5.0, for tests only.

It encodes the packets of a client, legal or not, and parses those of a server strictly: bytes
that no server may send raise `ServerViolationError`.
"""

from collections import Counter
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from harness import packets
from harness.packets import (
    CONNACK,
    CONNECT,
    DISCONNECT,
    PINGRESP,
    PUBACK,
    PUBCOMP,
    PUBLISH,
    PUBREC,
    PUBREL,
    SUBACK,
    SUBSCRIBE,
    UNSUBACK,
    UNSUBSCRIBE,
    Pingresp,
    ServerViolationError,
    packet,
    remaining_length,
    text,
    u16,
)

AUTH = 15
NAMES = {**packets.NAMES, AUTH: "AUTH"}

Value: TypeAlias = int | str | bytes | tuple[str, str]
Properties: TypeAlias = tuple[tuple[int, Value], ...]
"""Identifiers and values, in their order."""

PAYLOAD_FORMAT = 0x01
MESSAGE_EXPIRY = 0x02
CONTENT_TYPE = 0x03
RESPONSE_TOPIC = 0x08
CORRELATION_DATA = 0x09
SUBSCRIPTION_IDENTIFIER = 0x0B
SESSION_EXPIRY = 0x11
ASSIGNED_CLIENT_IDENTIFIER = 0x12
SERVER_KEEP_ALIVE = 0x13
AUTHENTICATION_METHOD = 0x15
AUTHENTICATION_DATA = 0x16
REQUEST_PROBLEM_INFORMATION = 0x17
WILL_DELAY = 0x18
REQUEST_RESPONSE_INFORMATION = 0x19
RESPONSE_INFORMATION = 0x1A
SERVER_REFERENCE = 0x1C
REASON_STRING = 0x1F
RECEIVE_MAXIMUM = 0x21
TOPIC_ALIAS_MAXIMUM = 0x22
TOPIC_ALIAS = 0x23
MAXIMUM_QOS = 0x24
RETAIN_AVAILABLE = 0x25
USER_PROPERTY = 0x26
MAXIMUM_PACKET_SIZE = 0x27
WILDCARDS_AVAILABLE = 0x28
IDENTIFIERS_AVAILABLE = 0x29
SHARES_AVAILABLE = 0x2A


class Kind(Enum):
    """How a value stands in a packet (section 1.5)."""

    BYTE = auto()
    TWO_BYTES = auto()
    FOUR_BYTES = auto()
    VARIABLE = auto()
    TEXT = auto()
    BINARY = auto()
    PAIR = auto()


_WIDTHS = {Kind.BYTE: 1, Kind.TWO_BYTES: 2, Kind.FOUR_BYTES: 4}
KINDS = {
    **dict.fromkeys((0x01, 0x17, 0x19, 0x24, 0x25, 0x28, 0x29, 0x2A), Kind.BYTE),
    **dict.fromkeys((0x13, 0x21, 0x22, 0x23), Kind.TWO_BYTES),
    **dict.fromkeys((0x02, 0x11, 0x18, 0x27), Kind.FOUR_BYTES),
    **dict.fromkeys((0x03, 0x08, 0x12, 0x15, 0x1A, 0x1C, 0x1F), Kind.TEXT),
    **dict.fromkeys((0x09, 0x16), Kind.BINARY),
    SUBSCRIPTION_IDENTIFIER: Kind.VARIABLE,
    USER_PROPERTY: Kind.PAIR,
}
"""Table 2-4."""
_EXPLAINED = frozenset({REASON_STRING, USER_PROPERTY})
_MAY_CARRY: dict[int, frozenset[int]] = {
    CONNACK: frozenset(
        {0x11, 0x12, 0x13, 0x15, 0x16, 0x1A, 0x1C, 0x1F, 0x21, 0x22, *range(0x24, 0x2B)}
    ),
    PUBLISH: frozenset({0x01, 0x02, 0x03, 0x08, 0x09, 0x0B, 0x23, 0x26}),
    **dict.fromkeys((PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK), _EXPLAINED),
    DISCONNECT: _EXPLAINED | {SERVER_REFERENCE},
    AUTH: _EXPLAINED | {AUTHENTICATION_METHOD, AUTHENTICATION_DATA},
}
"""What servers may send, and where."""
_OF_PUBLISH = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
CODES: dict[int, frozenset[int]] = {
    CONNACK: frozenset(
        {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, *range(0x99, 0x9E), 0x9F}
    ),
    PUBACK: _OF_PUBLISH,
    PUBREC: _OF_PUBLISH,
    PUBREL: frozenset({0x00, 0x92}),
    PUBCOMP: frozenset({0x00, 0x92}),
    SUBACK: frozenset({0, 1, 2, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}),
    UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
    DISCONNECT: frozenset(
        {0x00, *range(0x80, 0x84), 0x87, 0x89, *range(0x8B, 0x91), *range(0x93, 0xA3)}
    ),
    AUTH: frozenset({0x00, 0x18}),
}
"""The reason codes that servers may send, and where: tables 3-1 to 3-11."""
_ACKNOWLEDGEMENTS = (PUBACK, PUBREC, PUBREL, PUBCOMP)
_GRANTS = (SUBACK, UNSUBACK)


@dataclass(frozen=True, slots=True)
class Publish:
    topic: str
    payload: bytes
    qos: int = 0
    packet_id: int | None = None
    dup: bool = False
    retain: bool = False
    properties: Properties = ()

    def __repr__(self) -> str:
        payload = self.payload if len(self.payload) <= 40 else self.payload[:37] + b"..."
        flags = f" id={self.packet_id}" * bool(self.qos) + " DUP" * self.dup
        flags += " RETAIN" * self.retain + f" {self.properties}" * bool(self.properties)
        return f"PUBLISH({self.topic[:60]!r} {payload!r} qos={self.qos}{flags})"

    def get(self, identifier: int) -> Value | None:
        """The value of a property that stands there once at most."""
        return dict(self.properties).get(identifier)

    @property
    def identifiers(self) -> set[int]:
        """Its Subscription Identifiers, each once."""
        return set(self.identifier_counts)

    @property
    def identifier_counts(self) -> Counter[int]:
        """How often each Subscription Identifier stands there."""
        return Counter(
            int(value) for key, value in self.properties if key == SUBSCRIPTION_IDENTIFIER
        )

    @property
    def user(self) -> list[Value]:
        """Its User Properties in their order."""
        return [value for key, value in self.properties if key == USER_PROPERTY]


@dataclass(frozen=True, slots=True)
class Answer:
    """Any packet of a server but PUBLISH and PINGRESP."""

    kind: int
    code: int = 0
    packet_id: int = 0
    codes: tuple[int, ...] = ()
    session_present: bool = False
    properties: Properties = ()
    size: int = 0

    def __repr__(self) -> str:
        codes = [f"0x{code:02X}" for code in self.codes]
        return (
            f"{NAMES[self.kind]}(0x{self.code:02X} id={self.packet_id} {codes} "
            f"present={self.session_present} {self.properties})"
        )

    def get(self, identifier: int) -> Value | None:
        """The value of a property that stands there once at most."""
        return dict(self.properties).get(identifier)

    def number(self, identifier: int, absent: int) -> int:
        """The value of a number, and what it is if it is not there."""
        found = self.get(identifier)
        return absent if found is None else int(found)  # type: ignore[arg-type]


Packet: TypeAlias = Publish | Answer | Pingresp


# ---------------------------------------------------------------- building


def prop(identifier: int, value: Value) -> bytes:
    """One property; text as bytes is taken as it is, legal UTF-8 or not."""
    kind = KINDS[identifier]
    if isinstance(value, tuple):
        body = text(value[0]) + text(value[1])
    elif not isinstance(value, int):
        body = text(value)
    elif kind is Kind.VARIABLE:
        body = remaining_length(value)
    else:
        body = value.to_bytes(_WIDTHS[kind], "big")
    return bytes((identifier,)) + body


def block(properties: Properties | bytes) -> bytes:
    """A Property Length and the properties; bytes are taken for all of the properties."""
    if not isinstance(properties, bytes):
        properties = b"".join(prop(identifier, value) for identifier, value in properties)
    return remaining_length(len(properties)) + properties


@dataclass(frozen=True, slots=True)
class Will:
    topic: str | bytes
    payload: bytes = b"gone"
    qos: int = 0
    retain: bool = False
    properties: Properties | bytes = ()


def connect(
    client_id: str | bytes = "",
    *,
    clean: bool = True,
    keepalive: int = 0,
    will: Will | None = None,
    username: str | bytes | None = None,
    password: bytes | None = None,
    properties: Properties | bytes = (),
    protocol: str = "MQTT",
    level: int = 5,
    flags: int | None = None,
) -> bytes:
    """A CONNECT; `flags` replaces the connect flags byte that would follow from the rest."""
    body = text(client_id)
    bits = 0x02 if clean else 0
    if will is not None:
        bits |= 0x04 | will.qos << 3 | (0x20 if will.retain else 0)
        body += block(will.properties) + text(will.topic) + text(will.payload)
    if username is not None:
        bits |= 0x80
        body += text(username)
    if password is not None:
        bits |= 0x40
        body += text(password)
    head = text(protocol) + bytes([level, bits if flags is None else flags]) + u16(keepalive)
    return packet(CONNECT, 0, head + block(properties) + body)


def publish(
    topic: str | bytes,
    payload: bytes = b"",
    qos: int = 0,
    packet_id: int | None = None,
    *,
    dup: bool = False,
    retain: bool = False,
    properties: Properties | bytes = (),
) -> bytes:
    head = text(topic) + (b"" if packet_id is None else u16(packet_id)) + block(properties)
    return packet(PUBLISH, (8 if dup else 0) | qos << 1 | int(retain), head + payload)


def acknowledge(
    kind: int, packet_id: int, code: int | None = None, properties: Properties | bytes | None = None
) -> bytes:
    """A PUBACK, PUBREC, PUBREL or PUBCOMP, as short as its arguments."""
    body = u16(packet_id) + (b"" if code is None else bytes((code,)))
    return packet(
        kind, 2 * (kind == PUBREL), body + (b"" if properties is None else block(properties))
    )


def subscribe(
    packet_id: int, *filters: tuple[str | bytes, int], properties: Properties | bytes = ()
) -> bytes:
    """Each filter with its byte of options."""
    entries = b"".join(text(topic_filter) + bytes([options]) for topic_filter, options in filters)
    return packet(SUBSCRIBE, 2, u16(packet_id) + block(properties) + entries)


def unsubscribe(
    packet_id: int, *filters: str | bytes, properties: Properties | bytes = ()
) -> bytes:
    return packet(UNSUBSCRIBE, 2, u16(packet_id) + block(properties) + b"".join(map(text, filters)))


def disconnect(code: int | None = None, properties: Properties | bytes | None = None) -> bytes:
    """As short as its arguments."""
    body = (b"" if code is None else bytes((code,))) + (
        b"" if properties is None else block(properties)
    )
    return packet(DISCONNECT, 0, body)


def auth(code: int | None = None, properties: Properties | bytes | None = None) -> bytes:
    """As short as its arguments."""
    body = (b"" if code is None else bytes((code,))) + (
        b"" if properties is None else block(properties)
    )
    return packet(AUTH, 0, body)


# ----------------------------------------------------------------- parsing


def parse(first: int, body: bytes) -> Packet:
    """A packet that a server may send; anything else is a `ServerViolationError`."""
    kind, flags = first >> 4, first & 0x0F
    shown = f"{first:02x} | {body[:48].hex(' ')}"
    try:
        if kind == PUBLISH:
            return _parse_publish(flags, body)
        return _parse_answer(kind, flags, body)
    except (ServerViolationError, IndexError, UnicodeDecodeError) as error:
        raise ServerViolationError(f"{error}: {shown}") from None


def _parse_answer(kind: int, flags: int, body: bytes) -> Answer | Pingresp:
    if flags != (2 if kind == PUBREL else 0):
        raise ServerViolationError("reserved flags of the fixed header")
    if kind == PINGRESP and not body:
        return Pingresp()
    size = 1 + len(remaining_length(len(body))) + len(body)
    at = code = packet_id = 0
    present = False
    if kind == CONNACK:
        if body[0] > 1 or (body[0] and body[1]):
            raise ServerViolationError("acknowledge flags of the CONNACK")
        present, code, at = bool(body[0]), body[1], 2
    elif kind in _ACKNOWLEDGEMENTS or kind in _GRANTS:
        packet_id, at = _packet_id(body), 2
        if kind in _ACKNOWLEDGEMENTS and len(body) > at:
            code, at = body[at], at + 1
    elif kind in {DISCONNECT, AUTH}:
        if body:
            code, at = body[0], 1
    else:
        raise ServerViolationError("no packet that a server may send")
    properties: Properties = ()
    if at < len(body) or kind in _GRANTS or kind == CONNACK:
        properties, at = _parse_block(kind, body, at)
    codes = tuple(body[at:])
    if bool(codes) != (kind in _GRANTS):
        raise ServerViolationError("bytes too many, or no reason code")
    for one in codes or (code,):
        if one not in CODES[kind]:
            raise ServerViolationError(f"reason code 0x{one:02X}")
    return Answer(kind, code, packet_id, codes, present, properties, size)


def _parse_publish(flags: int, body: bytes) -> Publish:
    qos = flags >> 1 & 3
    if qos == 3:
        raise ServerViolationError("QoS 3")
    if flags & 8 and not qos:
        raise ServerViolationError("DUP on a QoS 0 message")
    topic, at = _parse_text(body, 0)
    if set("+#\0") & set(topic):
        raise ServerViolationError("forbidden character in the topic name")
    packet_id = None
    if qos:
        packet_id, at = _packet_id(body[at : at + 2]), at + 2
    properties, at = _parse_block(PUBLISH, body, at)
    if not topic and TOPIC_ALIAS not in dict(properties):
        raise ServerViolationError("no topic name and no alias")
    return Publish(topic, body[at:], qos, packet_id, bool(flags & 8), bool(flags & 1), properties)


def _packet_id(data: bytes) -> int:
    value = int.from_bytes(data[:2], "big")
    if not value or len(data) < 2:
        raise ServerViolationError("packet identifier 0 or missing")
    return value


def _parse_block(kind: int, body: bytes, at: int) -> tuple[Properties, int]:
    length, at = parse_variable(body, at)
    stop = at + length
    if stop > len(body):
        raise ServerViolationError("properties run over the end of the packet")
    found: list[tuple[int, Value]] = []
    while at < stop:
        identifier = body[at]
        if identifier not in _MAY_CARRY[kind]:
            raise ServerViolationError(f"property 0x{identifier:02X} in a {NAMES[kind]}")
        if identifier in dict(found) and identifier not in {USER_PROPERTY, SUBSCRIPTION_IDENTIFIER}:
            raise ServerViolationError(f"property 0x{identifier:02X} twice")
        value, at = _parse_value(KINDS[identifier], body, at + 1)
        _check_value(identifier, value)
        found.append((identifier, value))
    if at != stop:
        raise ServerViolationError("the last property runs over the Property Length")
    return tuple(found), at


def _check_value(identifier: int, value: Value) -> None:
    if KINDS[identifier] is Kind.BYTE and value not in (0, 1):
        raise ServerViolationError(f"property 0x{identifier:02X} is {value!r}")
    never_0 = {RECEIVE_MAXIMUM, TOPIC_ALIAS, MAXIMUM_PACKET_SIZE, SUBSCRIPTION_IDENTIFIER}
    if identifier in never_0 and not value:
        raise ServerViolationError(f"property 0x{identifier:02X} is 0")


def _parse_value(kind: Kind, body: bytes, at: int) -> tuple[Value, int]:
    if kind is Kind.PAIR:
        name, at = _parse_text(body, at)
        value, at = _parse_text(body, at)
        return (name, value), at
    if kind is Kind.TEXT:
        return _parse_text(body, at)
    if kind is Kind.VARIABLE:
        return parse_variable(body, at)
    if kind is Kind.BINARY:
        end = at + 2 + int.from_bytes(body[at : at + 2], "big")
        return body[at + 2 : end], end
    end = at + _WIDTHS[kind]
    return int.from_bytes(body[at:end], "big"), end


def _parse_text(body: bytes, at: int) -> tuple[str, int]:
    end = at + 2 + int.from_bytes(body[at : at + 2], "big")
    if end > len(body):
        raise ServerViolationError("a string runs over the end of the packet")
    found = body[at + 2 : end].decode()
    if "\0" in found:
        raise ServerViolationError("U+0000 in a string")
    return found, end


def parse_variable(body: bytes, at: int) -> tuple[int, int]:
    """A Variable Byte Integer in the fewest bytes, and the offset where it ends."""
    value = 0
    for index in range(4):
        value |= (body[at + index] & 0x7F) << 7 * index
        if body[at + index] < 0x80:
            if index and not body[at + index]:
                raise ServerViolationError("a Variable Byte Integer with needless bytes")
            return value, at + index + 1
    raise ServerViolationError("a Variable Byte Integer of more than four bytes")
