"""The flags that ``foldmq pub`` and ``foldmq sub`` share, and those of MQTT 5."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer


@dataclass(frozen=True, slots=True)
class BrokerFlags:
    """The address of the broker, and the flags of the connection."""

    host: Annotated[
        str, typer.Option("-h", "--host", metavar="HOST", help="Host of the broker.")
    ] = "127.0.0.1"
    port: Annotated[
        int | None,
        typer.Option(
            "-p",
            "--port",
            metavar="PORT",
            min=1,
            max=65535,
            help="Port of the broker. [default: 1883, with TLS 8883]",
        ),
    ] = None
    client_id: Annotated[
        str | None,
        typer.Option("-i", "--id", metavar="ID", help="Client identifier. [default: a random one]"),
    ] = None
    keep: Annotated[
        bool,
        typer.Option(
            "-c",
            "--keep-session",
            help="Resume the session, and keep it after the connection ends (clean session = 0).",
        ),
    ] = False
    username: Annotated[
        str | None, typer.Option("-u", "--username", metavar="USER", help="User name.")
    ] = None
    password: Annotated[
        str | None,
        typer.Option(
            "-P",
            "--pw",
            "--password",
            metavar="PASSWORD",
            envvar="FOLDMQ_PASSWORD",
            help="Password; the environment variable is safer.",
        ),
    ] = None
    url: Annotated[
        str | None,
        typer.Option(
            "--url",
            metavar="URL",
            envvar="FOLDMQ_URL",
            show_envvar=False,
            help="URL of the broker, instead of host, port, user and password: "
            "mqtt://user:password@host:port, or mqtts, ws, wss. [env var: FOLDMQ_URL]",
        ),
    ] = None
    cafile: Annotated[
        Path | None,
        typer.Option(
            "--cafile",
            metavar="FILE",
            help="CA certificates that the broker's certificate is verified against (TLS).",
        ),
    ] = None
    cert: Annotated[
        Path | None, typer.Option("--cert", metavar="FILE", help="Client certificate (TLS).")
    ] = None
    key: Annotated[
        Path | None,
        typer.Option("--key", metavar="FILE", help="Private key of the client certificate."),
    ] = None
    insecure: Annotated[
        bool,
        typer.Option(
            "--insecure", help="Do not verify that the broker's certificate matches the host name."
        ),
    ] = False
    version: Annotated[
        str | None,
        typer.Option(
            "-V",
            "--protocol-version",
            metavar="5|311|31",
            help="Version of MQTT. [default: 311; 5 if a flag needs it]",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class WillFlags:
    """The message that the broker publishes when the connection ends without DISCONNECT."""

    will_topic: Annotated[
        str | None,
        typer.Option(
            "--will-topic",
            metavar="TOPIC",
            help="Topic of the will: what the broker publishes when the connection is lost.",
        ),
    ] = None
    will_payload: Annotated[
        str | None, typer.Option("--will-payload", metavar="TEXT", help="Payload of the will.")
    ] = None
    will_qos: Annotated[
        int,
        typer.Option("--will-qos", metavar="QOS", min=0, max=2, help="QoS of the will."),
    ] = 0
    will_retain: Annotated[bool, typer.Option("--will-retain", help="Retain the will.")] = False


@dataclass(frozen=True, slots=True)
class WillPropertyFlags:
    """Properties of the will."""

    will_delay: Annotated[
        str | None,
        typer.Option(
            "--will-delay",
            metavar="TIME",
            help="Publish the will after this time, unless the client reconnects before. (MQTT 5)",
        ),
    ] = None
    will_expiry: Annotated[
        str | None,
        typer.Option("--will-expiry", metavar="TIME", help="Message expiry of the will. (MQTT 5)"),
    ] = None
    will_content_type: Annotated[
        str | None,
        typer.Option(
            "--will-content-type", metavar="TEXT", help="Content type of the will. (MQTT 5)"
        ),
    ] = None
    will_response_topic: Annotated[
        str | None,
        typer.Option(
            "--will-response-topic", metavar="TOPIC", help="Response topic of the will. (MQTT 5)"
        ),
    ] = None
    will_correlation_data: Annotated[
        str | None,
        typer.Option(
            "--will-correlation-data",
            metavar="TEXT",
            help="Correlation data of the will. (MQTT 5)",
        ),
    ] = None
    will_utf8: Annotated[
        bool, typer.Option("--will-utf8", help="The will's payload is UTF-8 text. (MQTT 5)")
    ] = False
    will_property: Annotated[
        list[str] | None,
        typer.Option(
            "--will-property",
            metavar="NAME=VALUE",
            help="User property of the will. May be repeated. (MQTT 5)",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class ConnectPropertyFlags:
    """Properties of the connection."""

    session_expiry: Annotated[
        str | None,
        typer.Option(
            "-x",
            "--session-expiry",
            "--session-expiry-interval",
            metavar="TIME",
            help='How long the broker keeps the session after the connection ends, or "never". '
            "(MQTT 5) [default: 0; with -c: never]",
        ),
    ] = None
    receive_maximum: Annotated[
        int | None,
        typer.Option(
            "--receive-maximum",
            metavar="N",
            min=1,
            max=65535,
            help="Receive at most this many messages before they are acknowledged. (MQTT 5)",
        ),
    ] = None
    connect_property: Annotated[
        list[str] | None,
        typer.Option(
            "--connect-property",
            metavar="NAME=VALUE",
            help="User property of the connection. May be repeated. (MQTT 5)",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class MessagePropertyFlags:
    """Properties of published messages."""

    message_expiry: Annotated[
        str | None,
        typer.Option(
            "--message-expiry",
            metavar="TIME",
            help="Discard the message if it is not delivered within this time. (MQTT 5)",
        ),
    ] = None
    content_type: Annotated[
        str | None,
        typer.Option(
            "--content-type",
            metavar="TEXT",
            help="Content type of the payload, such as text/plain. (MQTT 5)",
        ),
    ] = None
    response_topic: Annotated[
        str | None,
        typer.Option("--response-topic", metavar="TOPIC", help="Topic for the response. (MQTT 5)"),
    ] = None
    correlation_data: Annotated[
        str | None,
        typer.Option(
            "--correlation-data",
            metavar="TEXT",
            help="Data that the response repeats, to match it with the request. (MQTT 5)",
        ),
    ] = None
    utf8: Annotated[bool, typer.Option("--utf8", help="The payload is UTF-8 text. (MQTT 5)")] = (
        False
    )
    user_property: Annotated[
        list[str] | None,
        typer.Option(
            "--user-property",
            metavar="NAME=VALUE",
            help="User property. May be repeated. (MQTT 5)",
        ),
    ] = None
    topic_alias: Annotated[
        int | None,
        typer.Option(
            "--topic-alias",
            metavar="N",
            min=1,
            max=65535,
            help="Topic alias: with -l, only the first message carries the topic, the others this "
            "number. (MQTT 5)",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class SubscribePropertyFlags:
    """Options of subscriptions."""

    no_local: Annotated[
        bool,
        typer.Option(
            "--no-local",
            help="Do not receive messages that this client identifier publishes. (MQTT 5)",
        ),
    ] = False
    retain_as_published: Annotated[
        bool,
        typer.Option(
            "--retain-as-published",
            help="Keep the RETAIN flag with which each message was published. (MQTT 5)",
        ),
    ] = False
    retain_handling: Annotated[
        str | None,
        typer.Option(
            "--retain-handling",
            metavar="always|new|never",
            help="When to send retained messages; new: only if the subscription did not exist. "
            "(MQTT 5) [default: always]",
        ),
    ] = None
    subscription_identifier: Annotated[
        int | None,
        typer.Option(
            "--subscription-identifier",
            metavar="N",
            min=1,
            max=268_435_455,
            help="Number that the broker sends with each message of the subscription. (MQTT 5)",
        ),
    ] = None
