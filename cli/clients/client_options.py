"""The flags that ``foldmq pub`` and ``foldmq sub`` share, and those of MQTT 5."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class BrokerFlags:
    """The address of the broker, and the flags of the connection."""

    host: Annotated[str, typer.Option("-h", "--host", metavar="HOST")] = "127.0.0.1"
    """Host of the broker."""
    port: Annotated[int | None, typer.Option("-p", "--port", metavar="PORT", min=1, max=65535)] = (
        None
    )
    """Port of the broker. [default: 1883, with TLS 8883]"""
    client_id: Annotated[str | None, typer.Option("-i", "--id", metavar="ID")] = None
    """Client identifier. [default: a random one]"""
    keep: Annotated[bool, typer.Option("-c", "--keep-session")] = False
    """Resume the session, and keep it after the connection ends (clean session = 0)."""
    username: Annotated[str | None, typer.Option("-u", "--username", metavar="USER")] = None
    """User name."""
    password: Annotated[
        str | None,
        typer.Option("-P", "--pw", "--password", metavar="PASSWORD", envvar="FOLDMQ_PASSWORD"),
    ] = None
    """Password; the environment variable is safer."""
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", envvar="FOLDMQ_URL", show_envvar=False)
    ] = None
    """URL of the broker, instead of host, port, user and password: mqtt://user:password@host:port,
    or mqtts, ws, wss. [env var: FOLDMQ_URL]"""
    cafile: Annotated[Path | None, typer.Option("--cafile", metavar="FILE")] = None
    """CA certificates that the broker's certificate is verified against (TLS)."""
    cert: Annotated[Path | None, typer.Option("--cert", metavar="FILE")] = None
    """Client certificate (TLS)."""
    key: Annotated[Path | None, typer.Option("--key", metavar="FILE")] = None
    """Private key of the client certificate."""
    insecure: Annotated[bool, typer.Option("--insecure")] = False
    """Do not verify that the broker's certificate matches the host name."""
    version: Annotated[str | None, typer.Option("-V", "--protocol-version", metavar="5|311|31")] = (
        None
    )
    """Version of MQTT. [default: 311; 5 if a flag needs it]"""


@dataclass(frozen=True, slots=True)
class WillFlags:
    """The message that the broker publishes when the connection ends without DISCONNECT."""

    will_topic: Annotated[str | None, typer.Option("--will-topic", metavar="TOPIC")] = None
    """Topic of the will: what the broker publishes when the connection is lost."""
    will_payload: Annotated[str | None, typer.Option("--will-payload", metavar="TEXT")] = None
    """Payload of the will."""
    will_qos: Annotated[int, typer.Option("--will-qos", metavar="QOS", min=0, max=2)] = 0
    """QoS of the will."""
    will_retain: Annotated[bool, typer.Option("--will-retain")] = False
    """Retain the will."""


@dataclass(frozen=True, slots=True)
class WillPropertyFlags:
    """Properties of the will."""

    will_delay: Annotated[str | None, typer.Option("--will-delay", metavar="TIME")] = None
    """Publish the will after this time, unless the client reconnects before. (MQTT 5)"""
    will_expiry: Annotated[str | None, typer.Option("--will-expiry", metavar="TIME")] = None
    """Message expiry of the will. (MQTT 5)"""
    will_content_type: Annotated[
        str | None, typer.Option("--will-content-type", metavar="TEXT")
    ] = None
    """Content type of the will. (MQTT 5)"""
    will_response_topic: Annotated[
        str | None, typer.Option("--will-response-topic", metavar="TOPIC")
    ] = None
    """Response topic of the will. (MQTT 5)"""
    will_correlation_data: Annotated[
        str | None, typer.Option("--will-correlation-data", metavar="TEXT")
    ] = None
    """Correlation data of the will. (MQTT 5)"""
    will_utf8: Annotated[bool, typer.Option("--will-utf8")] = False
    """The will's payload is UTF-8 text. (MQTT 5)"""
    will_property: Annotated[
        list[str] | None, typer.Option("--will-property", metavar="NAME=VALUE")
    ] = None
    """User property of the will. May be repeated. (MQTT 5)"""


@dataclass(frozen=True, slots=True)
class ConnectPropertyFlags:
    """Properties of the connection."""

    session_expiry: Annotated[
        str | None,
        typer.Option("-x", "--session-expiry", "--session-expiry-interval", metavar="TIME"),
    ] = None
    """How long the broker keeps the session after the connection ends, or "never". (MQTT 5)
    [default: 0; with -c: never]"""
    receive_maximum: Annotated[
        int | None, typer.Option("--receive-maximum", metavar="N", min=1, max=65535)
    ] = None
    """Receive at most this many messages before they are acknowledged. (MQTT 5)"""
    connect_property: Annotated[
        list[str] | None, typer.Option("--connect-property", metavar="NAME=VALUE")
    ] = None
    """User property of the connection. May be repeated. (MQTT 5)"""


@dataclass(frozen=True, slots=True)
class MessagePropertyFlags:
    """Properties of published messages."""

    message_expiry: Annotated[str | None, typer.Option("--message-expiry", metavar="TIME")] = None
    """Discard the message if it is not delivered within this time. (MQTT 5)"""
    content_type: Annotated[str | None, typer.Option("--content-type", metavar="TEXT")] = None
    """Content type of the payload, such as text/plain. (MQTT 5)"""
    response_topic: Annotated[str | None, typer.Option("--response-topic", metavar="TOPIC")] = None
    """Topic for the response. (MQTT 5)"""
    correlation_data: Annotated[str | None, typer.Option("--correlation-data", metavar="TEXT")] = (
        None
    )
    """Data that the response repeats, to match it with the request. (MQTT 5)"""
    utf8: Annotated[bool, typer.Option("--utf8")] = False
    """The payload is UTF-8 text. (MQTT 5)"""
    user_property: Annotated[
        list[str] | None, typer.Option("--user-property", metavar="NAME=VALUE")
    ] = None
    """User property. May be repeated. (MQTT 5)"""
    topic_alias: Annotated[
        int | None, typer.Option("--topic-alias", metavar="N", min=1, max=65535)
    ] = None
    """Topic alias: with -l, only the first message carries the topic, the others this number. (MQTT
    5)"""


@dataclass(frozen=True, slots=True)
class SubscribePropertyFlags:
    """Options of subscriptions."""

    no_local: Annotated[bool, typer.Option("--no-local")] = False
    """Do not receive messages that this client identifier publishes. (MQTT 5)"""
    retain_as_published: Annotated[bool, typer.Option("--retain-as-published")] = False
    """Keep the RETAIN flag with which each message was published. (MQTT 5)"""
    retain_handling: Annotated[
        str | None, typer.Option("--retain-handling", metavar="always|new|never")
    ] = None
    """When to send retained messages; new: only if the subscription did not exist. (MQTT 5)
    [default: always]"""
    subscription_identifier: Annotated[
        int | None, typer.Option("--subscription-identifier", metavar="N", min=1, max=268435455)
    ] = None
    """Number that the broker sends with each message of the subscription. (MQTT 5)"""


_Qos = Annotated[
    int, typer.Option("-q", "--qos", metavar="QOS", min=0, max=2, help="Quality of service.")
]


@dataclass(frozen=True, slots=True)
class PublishFlags:
    """The messages to publish."""

    topic: Annotated[str, typer.Option("-t", "--topic", metavar="TOPIC")]
    """Topic of the message."""
    message: Annotated[str | None, typer.Option("-m", "--message", metavar="TEXT")] = None
    """Payload."""
    file: Annotated[Path | None, typer.Option("-f", "--file", metavar="FILE")] = None
    """File with the payload."""
    null: Annotated[bool, typer.Option("-n", "--null-message")] = False
    """Empty payload."""
    lines: Annotated[bool, typer.Option("-l", "--stdin-line")] = False
    """Publish each line of stdin as a message."""
    qos: _Qos = 0
    retain: Annotated[bool, typer.Option("-r", "--retain")] = False
    """Retain the message."""


@dataclass(frozen=True, slots=True)
class SubscribeFlags:
    """The subscriptions, and how long and how to print their messages."""

    topics: Annotated[list[str], typer.Option("-t", "--topic", metavar="FILTER")]
    """Topic filter to subscribe to; shared: $share/NAME/FILTER. May be repeated."""
    qos: _Qos = 0
    count: Annotated[int | None, typer.Option("-C", "--count", metavar="N", min=1)] = None
    """Exit after this many messages."""
    timeout: Annotated[float | None, typer.Option("-W", "--timeout", metavar="SECONDS", min=0)] = (
        None
    )
    """Exit with code 27 after this many seconds."""
    only_subscribe: Annotated[bool, typer.Option("-E", "--only-subscribe")] = False
    """Exit when the broker has acknowledged the subscription."""
    verbose: Annotated[bool, typer.Option("-v", "--verbose")] = False
    """Print the topic before the payload."""
    as_json: Annotated[bool, typer.Option("--json")] = False
    """Print one JSON object per message, with its properties."""
    format: Annotated[str | None, typer.Option("-F", "--format", metavar="TEXT")] = None
    """Format of the output, with %t topic, %p payload, %l its length, %q QoS, %r retain, %C content
    type, %D correlation data, %E message expiry, %F payload format, %P user properties, %R response
    topic, %S subscription identifiers."""
