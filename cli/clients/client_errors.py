"""Failures of ``foldmq pub`` and ``foldmq sub``, and the meaning of a broker's reason codes."""

from collections.abc import Mapping
from types import MappingProxyType

from eventstore.display import escaped
from protocol.errors import FoldmqError
from protocol.mqtt.reason_codes import ReasonCode


class ClientError(FoldmqError):
    """The broker cannot be reached, refuses the connection, or closes it."""

    def __init__(self, message: str, exit_code: int = 1) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class UnreachableError(ClientError):
    """The broker cannot be reached now; a later attempt may succeed."""


class BadArgumentError(ClientError):
    """An argument is invalid."""

    def __init__(self, message: str) -> None:
        super().__init__(message, exit_code=2)


SENTENCES: Mapping[int, str] = MappingProxyType(
    {
        ReasonCode.UNSPECIFIED_ERROR: "no reason given",
        ReasonCode.MALFORMED_PACKET: "a packet is malformed",
        ReasonCode.PROTOCOL_ERROR: "a packet violates the protocol",
        ReasonCode.IMPLEMENTATION_SPECIFIC_ERROR: "the broker does not accept this",
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: (
            "the broker does not support this version of MQTT (see -V)"
        ),
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: "the client identifier is not allowed",
        ReasonCode.BAD_USER_NAME_OR_PASSWORD: "bad user name or password",
        ReasonCode.NOT_AUTHORIZED: "not authorized",
        ReasonCode.SERVER_UNAVAILABLE: "server unavailable",
        ReasonCode.SERVER_BUSY: "the broker is busy, try again later",
        ReasonCode.BANNED: "the client is banned",
        ReasonCode.SERVER_SHUTTING_DOWN: "the broker is shutting down",
        ReasonCode.BAD_AUTHENTICATION_METHOD: (
            "the broker does not support this authentication method"
        ),
        ReasonCode.KEEP_ALIVE_TIMEOUT: "the broker received nothing within the keep alive",
        ReasonCode.SESSION_TAKEN_OVER: "another connection took over the client identifier",
        ReasonCode.TOPIC_FILTER_INVALID: "the topic filter is not allowed",
        ReasonCode.TOPIC_NAME_INVALID: "the topic is not allowed",
        ReasonCode.PACKET_IDENTIFIER_IN_USE: "the packet identifier is in use",
        ReasonCode.PACKET_IDENTIFIER_NOT_FOUND: "the packet identifier is not known",
        ReasonCode.RECEIVE_MAXIMUM_EXCEEDED: "too many unacknowledged messages",
        ReasonCode.TOPIC_ALIAS_INVALID: "the topic alias is above the broker's maximum",
        ReasonCode.PACKET_TOO_LARGE: "a packet is too large",
        ReasonCode.MESSAGE_RATE_TOO_HIGH: "messages are sent too fast",
        ReasonCode.QUOTA_EXCEEDED: "a limit of the broker is reached",
        ReasonCode.ADMINISTRATIVE_ACTION: "an operator closed the connection",
        ReasonCode.PAYLOAD_FORMAT_INVALID: "the payload is not UTF-8, as declared by the message",
        ReasonCode.RETAIN_NOT_SUPPORTED: "the broker does not support retained messages",
        ReasonCode.QOS_NOT_SUPPORTED: "the broker does not support this QoS",
        ReasonCode.USE_ANOTHER_SERVER: "use another broker",
        ReasonCode.SERVER_MOVED: "the broker has moved",
        ReasonCode.SHARED_SUBSCRIPTIONS_NOT_SUPPORTED: (
            "the broker does not support shared subscriptions"
        ),
        ReasonCode.CONNECTION_RATE_EXCEEDED: "too many connections in a short time",
        ReasonCode.MAXIMUM_CONNECT_TIME: "the connection has reached its maximum duration",
        ReasonCode.SUBSCRIPTION_IDENTIFIERS_NOT_SUPPORTED: (
            "the broker does not support subscription identifiers"
        ),
        ReasonCode.WILDCARD_SUBSCRIPTIONS_NOT_SUPPORTED: "the broker does not support wildcards",
    }
)
"""The meaning of each reason code of a failure, for the user of a client."""

PASSING = frozenset(
    {
        ReasonCode.UNSPECIFIED_ERROR,
        ReasonCode.SERVER_BUSY,
        ReasonCode.SERVER_SHUTTING_DOWN,
        ReasonCode.KEEP_ALIVE_TIMEOUT,
        ReasonCode.QUOTA_EXCEEDED,
        ReasonCode.ADMINISTRATIVE_ACTION,
        ReasonCode.CONNECTION_RATE_EXCEEDED,
        ReasonCode.MAXIMUM_CONNECT_TIME,
    }
)
"""Reason codes of a DISCONNECT after which a client may connect again."""

_RETURN_CODES = {
    ReasonCode.UNSUPPORTED_PROTOCOL_VERSION: 1,
    ReasonCode.CLIENT_IDENTIFIER_NOT_VALID: 2,
    ReasonCode.SERVER_UNAVAILABLE: 3,
    ReasonCode.SERVER_BUSY: 3,
    ReasonCode.BAD_USER_NAME_OR_PASSWORD: 4,
    ReasonCode.NOT_AUTHORIZED: 5,
}
"""Return codes of MQTT 3.1.1 (table 3.1) by the reason codes of MQTT 5."""


def reason_text(code: int, explanation: str | None = None) -> str:
    """Return the meaning of a reason code, with its number and the broker's reason string."""
    detail = "" if explanation is None else f', "{escaped(explanation)}"'
    return f"{SENTENCES.get(code, 'no reason given')} (0x{code:02X}{detail})"


def connect_exit_code(code: int) -> int:
    """Return the exit code for a refusing CONNACK: its return code in MQTT 3.1.1."""
    return _RETURN_CODES.get(ReasonCode(code), 1)
