"""The reason codes of MQTT 5 (section 2.4), and the packets that carry them in each direction.

A reason code below 0x80 is success, from 0x80 on failure. MQTT 3.1 and 3.1.1 have return codes in
CONNACK alone: ``FOR_CONNECT_CODES`` maps each to MQTT 5. Reason strings explain the refusals of the
server as text.
"""

from collections.abc import Mapping, Sequence
from enum import IntEnum
from types import MappingProxyType

from protocol.mqtt.packets import ConnectCode, PacketType

FAILURE = 0x80
"""The lowest reason code of a failure."""


class ReasonCode(IntEnum):
    """The result of a packet, or the reason for the end of a connection."""

    SUCCESS = 0x00
    """Also: normal disconnection, and granted QoS 0."""
    GRANTED_QOS_1 = 0x01
    GRANTED_QOS_2 = 0x02
    DISCONNECT_WITH_WILL = 0x04
    NO_MATCHING_SUBSCRIBERS = 0x10
    NO_SUBSCRIPTION_EXISTED = 0x11
    CONTINUE_AUTHENTICATION = 0x18
    REAUTHENTICATE = 0x19
    UNSPECIFIED_ERROR = 0x80
    MALFORMED_PACKET = 0x81
    PROTOCOL_ERROR = 0x82
    IMPLEMENTATION_SPECIFIC_ERROR = 0x83
    UNSUPPORTED_PROTOCOL_VERSION = 0x84
    CLIENT_IDENTIFIER_NOT_VALID = 0x85
    BAD_USER_NAME_OR_PASSWORD = 0x86
    NOT_AUTHORIZED = 0x87
    SERVER_UNAVAILABLE = 0x88
    SERVER_BUSY = 0x89
    BANNED = 0x8A
    SERVER_SHUTTING_DOWN = 0x8B
    BAD_AUTHENTICATION_METHOD = 0x8C
    KEEP_ALIVE_TIMEOUT = 0x8D
    SESSION_TAKEN_OVER = 0x8E
    TOPIC_FILTER_INVALID = 0x8F
    TOPIC_NAME_INVALID = 0x90
    PACKET_IDENTIFIER_IN_USE = 0x91
    PACKET_IDENTIFIER_NOT_FOUND = 0x92
    RECEIVE_MAXIMUM_EXCEEDED = 0x93
    TOPIC_ALIAS_INVALID = 0x94
    PACKET_TOO_LARGE = 0x95
    MESSAGE_RATE_TOO_HIGH = 0x96
    QUOTA_EXCEEDED = 0x97
    ADMINISTRATIVE_ACTION = 0x98
    PAYLOAD_FORMAT_INVALID = 0x99
    RETAIN_NOT_SUPPORTED = 0x9A
    QOS_NOT_SUPPORTED = 0x9B
    USE_ANOTHER_SERVER = 0x9C
    SERVER_MOVED = 0x9D
    SHARED_SUBSCRIPTIONS_NOT_SUPPORTED = 0x9E
    CONNECTION_RATE_EXCEEDED = 0x9F
    MAXIMUM_CONNECT_TIME = 0xA0
    SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED = 0xA1
    WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED = 0xA2


_PUBLISH_ANSWERS = frozenset({0x00, 0x10, 0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})
_RELEASES = frozenset({0x00, 0x92})
_EITHER_END = frozenset(
    {0x80, 0x81, 0x82, 0x83, 0x90, 0x93, 0x94, 0x95, 0x96, 0x97, 0x98, 0x99, 0x8C}
)
_SERVER_ENDS = frozenset({0x87, 0x89, 0x8B, 0x8D, 0x8E, 0x8F, *range(0x9A, 0xA3)})

FROM_SERVERS: Mapping[PacketType, frozenset[int]] = MappingProxyType(
    {
        PacketType.CONNACK: frozenset(
            {0x00, *range(0x80, 0x8B), 0x8C, 0x90, 0x95, 0x97, 0x99, *range(0x9A, 0x9E), 0x9F}
        ),
        PacketType.PUBACK: _PUBLISH_ANSWERS,
        PacketType.PUBREC: _PUBLISH_ANSWERS,
        PacketType.PUBREL: _RELEASES,
        PacketType.PUBCOMP: _RELEASES,
        PacketType.SUBACK: frozenset(
            {0x00, 0x01, 0x02, 0x80, 0x83, 0x87, 0x8F, 0x91, 0x97, 0x9E, 0xA1, 0xA2}
        ),
        PacketType.UNSUBACK: frozenset({0x00, 0x11, 0x80, 0x83, 0x87, 0x8F, 0x91}),
        PacketType.DISCONNECT: frozenset({0x00}) | _EITHER_END | _SERVER_ENDS,
        PacketType.AUTH: frozenset({0x00, 0x18}),
    }
)
"""The reason codes that a server may send in a packet."""

FROM_CLIENTS: Mapping[PacketType, frozenset[int]] = MappingProxyType(
    {
        PacketType.PUBACK: _PUBLISH_ANSWERS,
        PacketType.PUBREC: _PUBLISH_ANSWERS,
        PacketType.PUBREL: _RELEASES,
        PacketType.PUBCOMP: _RELEASES,
        PacketType.DISCONNECT: frozenset({0x00, 0x04}) | _EITHER_END,
        PacketType.AUTH: frozenset({0x18, 0x19}),
    }
)
"""The reason codes that a client may send in a packet."""

STATEMENTS: Mapping[PacketType, str] = MappingProxyType(
    {
        PacketType.CONNACK: "MQTT-3.2.2-8",
        PacketType.PUBACK: "MQTT-3.4.2-1",
        PacketType.PUBREC: "MQTT-3.5.2-1",
        PacketType.PUBREL: "MQTT-3.6.2-1",
        PacketType.PUBCOMP: "MQTT-3.7.2-1",
        PacketType.SUBACK: "MQTT-3.9.3-2",
        PacketType.UNSUBACK: "MQTT-3.11.3-2",
        PacketType.DISCONNECT: "MQTT-3.14.2-1",
        PacketType.AUTH: "MQTT-3.15.2-1",
    }
)
"""The statement of MQTT 5.0 that allows only these reason codes in a packet."""

FOR_CONNECT_CODES: Mapping[ConnectCode, ReasonCode] = MappingProxyType(
    {
        ConnectCode.ACCEPTED: ReasonCode.SUCCESS,
        ConnectCode.UNACCEPTABLE_PROTOCOL_VERSION: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ConnectCode.IDENTIFIER_REJECTED: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        ConnectCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_UNAVAILABLE,
        ConnectCode.BAD_USER_NAME_OR_PASSWORD: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ConnectCode.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
    }
)
"""CONNACK return codes of MQTT 3.1.1 as reason codes."""

REFUSALS: Mapping[str, ReasonCode] = MappingProxyType(
    {
        "auth_bytes": ReasonCode.QUOTA_EXCEEDED,
        "auth_steps": ReasonCode.QUOTA_EXCEEDED,
        "authentication_method": ReasonCode.BAD_AUTHENTICATION_METHOD,
        "erased": ReasonCode.SERVER_BUSY,
        "flapping": ReasonCode.CONNECTION_RATE_EXCEEDED,
        "login_revoked": ReasonCode.NOT_AUTHORIZED,
        "new_names": ReasonCode.QUOTA_EXCEEDED,
        "other_partition": ReasonCode.USE_ANOTHER_SERVER,
        "other_user": ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        "packet_too_large": ReasonCode.PACKET_TOO_LARGE,
        "payload_format": ReasonCode.PAYLOAD_FORMAT_INVALID,
        "personal_keys": ReasonCode.QUOTA_EXCEEDED,
        "publish_rate": ReasonCode.QUOTA_EXCEEDED,
        "reserved_client_id": ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        "reserved_user": ReasonCode.NOT_AUTHORIZED,
        "taken_over": ReasonCode.SERVER_UNAVAILABLE,
        "too_many_connections": ReasonCode.QUOTA_EXCEEDED,
        "too_many_logins": ReasonCode.SERVER_BUSY,
        "too_many_sessions": ReasonCode.QUOTA_EXCEEDED,
        "unavailable": ReasonCode.SERVER_UNAVAILABLE,
        "will_not_permitted": ReasonCode.NOT_AUTHORIZED,
        "will_qos": ReasonCode.QOS_NOT_SUPPORTED,
    }
)
"""Reason for which a broker refuses a CONNECT -> the reason code of its CONNACK.

A refused login (``not_authorised``) has the code of its verdict.
"""

ENDINGS: Mapping[str, ReasonCode] = MappingProxyType(
    {
        "broker_stopped": ReasonCode.SERVER_SHUTTING_DOWN,
        "failed": ReasonCode.UNSPECIFIED_ERROR,
        "keep_alive": ReasonCode.KEEP_ALIVE_TIMEOUT,
        "kicked": ReasonCode.ADMINISTRATIVE_ACTION,
        "log_unavailable": ReasonCode.SERVER_BUSY,
        "login_expired": ReasonCode.NOT_AUTHORIZED,
        "login_revoked": ReasonCode.NOT_AUTHORIZED,
        "message_too_large": ReasonCode.PACKET_TOO_LARGE,
        "not_permitted": ReasonCode.NOT_AUTHORIZED,
        "packet_too_large": ReasonCode.PACKET_TOO_LARGE,
        "publish_rate": ReasonCode.MESSAGE_RATE_TOO_HIGH,
        "qos2_rejected": ReasonCode.QOS_NOT_SUPPORTED,
        "reauthentication_failed": ReasonCode.NOT_AUTHORIZED,
        "receive_maximum": ReasonCode.RECEIVE_MAXIMUM_EXCEEDED,
        "removed": ReasonCode.ADMINISTRATIVE_ACTION,
        "session_failed": ReasonCode.UNSPECIFIED_ERROR,
        "session_lost": ReasonCode.UNSPECIFIED_ERROR,
        "slow_reader": ReasonCode.QUOTA_EXCEEDED,
        "taken_over": ReasonCode.SESSION_TAKEN_OVER,
        "unread_bytes": ReasonCode.QUOTA_EXCEEDED,
    }
)
"""Reason for which a broker closes a connection (``SessionClosed.reason``) -> the reason code of
its DISCONNECT.

A protocol error has ``ProtocolError.reason``. A client whose connection is gone gets none.
"""

MAX_CHARACTERS = 200
"""Length at which a reason string is cut."""

_CLOSING: Mapping[str, str] = MappingProxyType(
    {
        "auth_bytes": "the exchange of AUTH packets is too long",
        "auth_steps": "too many AUTH packets",
        "authentication_method": "the server does not support this authentication method",
        "broker_stopped": "the server is shutting down",
        "erased": "the operator erased the name of the client",
        "failed": "internal error of the server",
        "flapping": "the client connects too often",
        "keep_alive": "no packet arrived within one and a half times the keep alive",
        "kicked": "the operator closed the connection",
        "log_unavailable": "the server currently cannot store messages",
        "login_expired": "the login has expired",
        "login_revoked": "the login is no longer valid",
        "message_too_large": "the message is too large to be stored",
        "new_names": "too many new names today from this address or user",
        "not_permitted": "not authorized to publish to this topic",
        "other_user": "the client identifier belongs to another user",
        "packet_too_large": "the packet exceeds the Maximum Packet Size",
        "payload_format": "the payload of the will is declared as UTF-8 text but is not",
        "personal_keys": "the server has no room for further names",
        "publish_rate": "the client exceeds its publish rate",
        "qos2_rejected": "the server does not accept QoS 2",
        "reauthentication_failed": "the authentication failed",
        "receive_maximum": "more unacknowledged messages than the Receive Maximum allows",
        "removed": "the operator removed the session",
        "reserved_client_id": "the client identifier is reserved",
        "reserved_user": "the user name is reserved",
        "session_failed": "internal error of the server",
        "session_lost": "the server could not restore the session",
        "slow_reader": "the client reads too slowly",
        "taken_over": "another connection uses this client identifier",
        "too_many_connections": "too many connections",
        "too_many_logins": "too many logins are in progress",
        "too_many_sessions": "too many sessions",
        "unavailable": "the server is not available",
        "unread_bytes": "the client reads too slowly",
        "will_not_permitted": "not authorized to publish to the topic of the will",
        "will_qos": "the server does not accept this QoS of a will",
    }
)

_MEANINGS: Mapping[int, str] = MappingProxyType(
    {
        ReasonCode.NOT_AUTHORIZED: "not authorized",
        ReasonCode.TOPIC_FILTER_INVALID: "not a valid topic filter",
        ReasonCode.TOPIC_NAME_INVALID: "not a valid topic name",
        ReasonCode.QUOTA_EXCEEDED: "a limit of the server is reached",
        ReasonCode.PAYLOAD_FORMAT_INVALID: "the payload is declared as UTF-8 text but is not",
        ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: "shared subscriptions are not supported",
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: "not possible with the settings of the server",
        ReasonCode.UNSPECIFIED_ERROR: "internal error of the server",
    }
)


_GRANTED = bytes(range(FAILURE))


def closing_string(reason: str, about: str = "") -> str | None:
    """Return a text for a refused or closed connection; None if the reason code needs none.

    ``reason`` is that of ``SessionClosed``; ``about`` describes a protocol error.
    """
    return about[:MAX_CHARACTERS] or _CLOSING.get(reason)


def code_string(code: int) -> str | None:
    """Return the meaning of an error in a PUBACK or PUBREC; None if the code is not an error."""
    return _MEANINGS.get(code) if code >= FAILURE else None


def filters_string(
    filters: Sequence[tuple[str, int]], codes: Sequence[int], reasons: Mapping[str, str]
) -> str | None:
    """Return why filters of a SUBSCRIBE, each with its QoS, were refused; None if none was.

    ``reasons`` are those of filters of which more is known than the code.
    """
    refused = bytes(codes).translate(None, _GRANTED)
    if not refused:
        return None
    at = codes.index(refused[0])
    refused_filter = filters[at][0]
    reason = reasons.get(refused_filter) or _MEANINGS.get(codes[at], "refused")
    first = f"{reason}: {refused_filter}"
    if len(first) > MAX_CHARACTERS:
        first = first[: MAX_CHARACTERS - 3] + "..."
    return first if len(refused) == 1 else f"{first} (and {len(refused) - 1:,} more)"
