"""The table of MQTT 5 properties (section 2.2.2.2): their types, and the packets with them."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum, auto
from typing import TypeAlias

from protocol.mqtt.packets import PacketType
from protocol.mqtt.reason_codes import ReasonCode

WILL = 0
"""The properties of a will, in addition to the types of packets."""

PropertyCarrier: TypeAlias = int
"""A ``PacketType``, or ``WILL``."""


class Kind(Enum):
    """The encoding of a value (section 1.5)."""

    BYTE = auto()
    TWO_BYTES = auto()
    FOUR_BYTES = auto()
    VARIABLE = auto()
    """A Variable Byte Integer."""
    TEXT = auto()
    BINARY = auto()
    PAIR = auto()
    """Two texts."""


@dataclass(frozen=True, slots=True)
class Property:
    """One property."""

    identifier: int
    name: str
    kind: Kind
    from_clients: frozenset[PropertyCarrier]
    """Packets in which a client may send it."""
    from_servers: frozenset[PropertyCarrier]
    """Packets in which a server may send it."""
    least: int = 0
    """The smallest value of a number."""
    most: int = 0xFFFFFFFF
    """The largest value of a number."""
    repeats: bool = False
    """Whether it may occur more than once; Subscription Identifier may in a PUBLISH alone."""
    statement: str = "MQTT-4.13.1-1"
    """The normative statement about a wrong value."""
    reason: ReasonCode = ReasonCode.PROTOCOL_ERROR
    """The reason code for a number out of range."""


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
WILDCARD_SUBSCRIPTION_AVAILABLE = 0x28
SUBSCRIPTION_IDENTIFIERS_AVAILABLE = 0x29
SHARED_SUBSCRIPTION_AVAILABLE = 0x2A

_NOWHERE: frozenset[PropertyCarrier] = frozenset()
_CONNECT = frozenset({PacketType.CONNECT})
_CONNACK = frozenset({PacketType.CONNACK})
_PUBLISH = frozenset({PacketType.PUBLISH})
_SUBSCRIBE = frozenset({PacketType.SUBSCRIBE})
_DISCONNECT = frozenset({PacketType.DISCONNECT})
_AUTH = frozenset({PacketType.AUTH})
_WILL = frozenset({WILL})
_ACKS = frozenset({PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP})
_ANSWERS = _ACKS | _DISCONNECT | _AUTH
_GRANTS = frozenset({PacketType.SUBACK, PacketType.UNSUBACK})
_REQUESTS = _SUBSCRIBE | {PacketType.UNSUBSCRIBE}
_MESSAGE = _PUBLISH | _WILL


def _flag(
    identifier: int,
    name: str,
    clients: frozenset[PropertyCarrier],
    servers: frozenset[PropertyCarrier],
) -> Property:
    """Return the property for a byte that is 0 or 1."""
    return Property(identifier, name, Kind.BYTE, clients, servers, most=1)


_ALL = (
    _flag(PAYLOAD_FORMAT, "Payload Format Indicator", _MESSAGE, _PUBLISH),
    Property(MESSAGE_EXPIRY, "Message Expiry Interval", Kind.FOUR_BYTES, _MESSAGE, _PUBLISH),
    Property(
        CONTENT_TYPE, "Content Type", Kind.TEXT, _MESSAGE, _PUBLISH, statement="MQTT-3.3.2-19"
    ),
    Property(
        RESPONSE_TOPIC, "Response Topic", Kind.TEXT, _MESSAGE, _PUBLISH, statement="MQTT-3.3.2-13"
    ),
    Property(CORRELATION_DATA, "Correlation Data", Kind.BINARY, _MESSAGE, _PUBLISH),
    Property(
        SUBSCRIPTION_IDENTIFIER,
        "Subscription Identifier",
        Kind.VARIABLE,
        _SUBSCRIBE,
        _PUBLISH,
        least=1,
        most=268_435_455,
    ),
    Property(
        SESSION_EXPIRY,
        "Session Expiry Interval",
        Kind.FOUR_BYTES,
        _CONNECT | _DISCONNECT,
        _CONNACK,
        statement="MQTT-3.14.2-2",
    ),
    Property(
        ASSIGNED_CLIENT_IDENTIFIER, "Assigned Client Identifier", Kind.TEXT, _NOWHERE, _CONNACK
    ),
    Property(SERVER_KEEP_ALIVE, "Server Keep Alive", Kind.TWO_BYTES, _NOWHERE, _CONNACK),
    Property(
        AUTHENTICATION_METHOD,
        "Authentication Method",
        Kind.TEXT,
        _CONNECT | _AUTH,
        _CONNACK | _AUTH,
    ),
    Property(
        AUTHENTICATION_DATA,
        "Authentication Data",
        Kind.BINARY,
        _CONNECT | _AUTH,
        _CONNACK | _AUTH,
    ),
    _flag(REQUEST_PROBLEM_INFORMATION, "Request Problem Information", _CONNECT, _NOWHERE),
    Property(WILL_DELAY, "Will Delay Interval", Kind.FOUR_BYTES, _WILL, _NOWHERE),
    _flag(REQUEST_RESPONSE_INFORMATION, "Request Response Information", _CONNECT, _NOWHERE),
    Property(RESPONSE_INFORMATION, "Response Information", Kind.TEXT, _NOWHERE, _CONNACK),
    Property(SERVER_REFERENCE, "Server Reference", Kind.TEXT, _NOWHERE, _CONNACK | _DISCONNECT),
    Property(REASON_STRING, "Reason String", Kind.TEXT, _ANSWERS, _ANSWERS | _GRANTS | _CONNACK),
    Property(RECEIVE_MAXIMUM, "Receive Maximum", Kind.TWO_BYTES, _CONNECT, _CONNACK, least=1),
    Property(TOPIC_ALIAS_MAXIMUM, "Topic Alias Maximum", Kind.TWO_BYTES, _CONNECT, _CONNACK),
    Property(
        TOPIC_ALIAS,
        "Topic Alias",
        Kind.TWO_BYTES,
        _PUBLISH,
        _PUBLISH,
        least=1,
        statement="MQTT-3.3.2-8",
        reason=ReasonCode.TOPIC_ALIAS_INVALID,
    ),
    _flag(MAXIMUM_QOS, "Maximum QoS", _NOWHERE, _CONNACK),
    _flag(RETAIN_AVAILABLE, "Retain Available", _NOWHERE, _CONNACK),
    Property(
        USER_PROPERTY,
        "User Property",
        Kind.PAIR,
        _ANSWERS | _REQUESTS | _CONNECT | _MESSAGE,
        _ANSWERS | _GRANTS | _CONNACK | _PUBLISH,
        repeats=True,
        statement="MQTT-1.5.7-1",
    ),
    Property(
        MAXIMUM_PACKET_SIZE, "Maximum Packet Size", Kind.FOUR_BYTES, _CONNECT, _CONNACK, least=1
    ),
    _flag(WILDCARD_SUBSCRIPTION_AVAILABLE, "Wildcard Subscription Available", _NOWHERE, _CONNACK),
    _flag(
        SUBSCRIPTION_IDENTIFIERS_AVAILABLE,
        "Subscription Identifiers Available",
        _NOWHERE,
        _CONNACK,
    ),
    _flag(SHARED_SUBSCRIPTION_AVAILABLE, "Shared Subscription Available", _NOWHERE, _CONNACK),
)

PROPERTIES: Mapping[int, Property] = {item.identifier: item for item in _ALL}
"""All properties by their identifiers."""

PLACES: tuple[PropertyCarrier, ...] = (WILL, *PacketType)
"""All packets that could have properties; PINGREQ and PINGRESP have none."""

FROM_CLIENTS: Mapping[PropertyCarrier, Mapping[int, Property]] = {
    place: {item.identifier: item for item in _ALL if place in item.from_clients}
    for place in PLACES
}
"""The properties that a client may send in each packet."""

FROM_SERVERS: Mapping[PropertyCarrier, Mapping[int, Property]] = {
    place: {item.identifier: item for item in _ALL if place in item.from_servers}
    for place in PLACES
}
"""The properties that a server may send in each packet."""
