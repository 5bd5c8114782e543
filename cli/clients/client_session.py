"""The CONNECT that ``foldmq pub`` and ``foldmq sub`` send, built from their flags."""

from collections.abc import Mapping
from dataclasses import dataclass

from cli.clients.client_errors import BadArgumentError
from cli.clients.client_options import (
    BrokerFlags,
    ConnectPropertyFlags,
    MessagePropertyFlags,
    WillFlags,
    WillPropertyFlags,
)
from cli.clients.option_values import (
    NEVER,
    Pairs,
    as_bytes,
    as_pairs,
    as_seconds,
    as_topic,
    checked_text,
    choose_level,
)
from cli.common.option_groups import given_flags

MessageProperties = Mapping[str, object]
"""Properties of a message by paho's names; None: it does not have that one."""


@dataclass(frozen=True, slots=True)
class ClientWill:
    """The message that the broker publishes when the connection ends without DISCONNECT."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: MessageProperties


@dataclass(frozen=True, slots=True)
class ClientSession:
    """A client: its identifier, the options of its session, and its will."""

    client_id: str | None = None
    keep: bool = False
    level: int = 4
    expiry: int | None = None
    """Seconds."""
    receive_maximum: int | None = None
    user: Pairs = ()
    will: ClientWill | None = None


def session_of(
    broker: BrokerFlags,
    connection: ConnectPropertyFlags,
    will: WillFlags,
    will_properties: WillPropertyFlags,
    other_flags: list[str],
) -> ClientSession:
    """Return the client that the flags describe; ``other_flags`` are others that need MQTT 5.

    Raises BadArgumentError for invalid or contradictory values.
    """
    of_will = given_flags(will_properties)
    for flag in [*given_flags(will), *of_will]:
        if will.will_topic is None:
            raise BadArgumentError(f"{flag} needs --will-topic")
    level = choose_level(broker.version, [*other_flags, *given_flags(connection), *of_will])
    expiry = as_seconds("--session-expiry", connection.session_expiry, never=True)
    if expiry is None and broker.keep and level == 5:
        expiry = NEVER
    if (broker.keep or expiry) and not broker.client_id:
        raise BadArgumentError(
            f"{'-c' if broker.keep else '--session-expiry'} needs a client identifier (-i)"
        )
    return ClientSession(
        broker.client_id,
        broker.keep,
        level,
        expiry,
        connection.receive_maximum,
        as_pairs("--connect-property", connection.connect_property),
        _will_of(will, will_properties),
    )


def _will_of(flags: WillFlags, properties: WillPropertyFlags) -> ClientWill | None:
    topic = as_topic("--will-topic", flags.will_topic)
    if topic is None:
        return None
    return ClientWill(
        topic,
        as_bytes("--will-payload", flags.will_payload) or b"",
        flags.will_qos,
        flags.will_retain,
        {
            "WillDelayInterval": as_seconds("--will-delay", properties.will_delay),
            "MessageExpiryInterval": as_seconds("--will-expiry", properties.will_expiry),
            "ContentType": checked_text("--will-content-type", properties.will_content_type),
            "ResponseTopic": as_topic("--will-response-topic", properties.will_response_topic),
            "CorrelationData": as_bytes(
                "--will-correlation-data", properties.will_correlation_data
            ),
            "PayloadFormatIndicator": int(properties.will_utf8) or None,
            "UserProperty": as_pairs("--will-property", properties.will_property) or None,
        },
    )


def message_properties(flags: MessagePropertyFlags) -> MessageProperties:
    """Return the properties that the flags describe; raises BadArgumentError."""
    return {
        "MessageExpiryInterval": as_seconds("--message-expiry", flags.message_expiry),
        "ContentType": checked_text("--content-type", flags.content_type),
        "ResponseTopic": as_topic("--response-topic", flags.response_topic),
        "CorrelationData": as_bytes("--correlation-data", flags.correlation_data),
        "PayloadFormatIndicator": int(flags.utf8) or None,
        "UserProperty": as_pairs("--user-property", flags.user_property) or None,
        "TopicAlias": flags.topic_alias,
    }
