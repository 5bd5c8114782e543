"""The commands ``foldmq pub`` and ``foldmq sub``."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from cli.clients.client_options import (
    BrokerFlags,
    ConnectPropertyFlags,
    MessagePropertyFlags,
    SubscribePropertyFlags,
    WillFlags,
    WillPropertyFlags,
)
from cli.common.option_groups import given_flags, with_option_groups
from cli.program.help_pages import Program

Qos = Annotated[
    int, typer.Option("-q", "--qos", metavar="QOS", min=0, max=2, help="Quality of service.")
]
_HANDLINGS = ("always", "new", "never")


def register_client_commands(app: Program) -> None:
    """Add the commands to the program."""
    app.command("pub")(with_option_groups(_pub))
    app.command("sub")(with_option_groups(_sub))


def _pub(
    *,
    topic: Annotated[
        str, typer.Option("-t", "--topic", metavar="TOPIC", help="Topic of the message.")
    ],
    message: Annotated[
        str | None, typer.Option("-m", "--message", metavar="TEXT", help="Payload.")
    ] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--file", metavar="FILE", help="File with the payload.")
    ] = None,
    null: Annotated[bool, typer.Option("-n", "--null-message", help="Empty payload.")] = False,
    lines: Annotated[
        bool, typer.Option("-l", "--stdin-line", help="Publish each line of stdin as a message.")
    ] = False,
    qos: Qos = 0,
    retain: Annotated[bool, typer.Option("-r", "--retain", help="Retain the message.")] = False,
    broker: BrokerFlags,
    message_flags: MessagePropertyFlags,
    connection: ConnectPropertyFlags,
    will: WillFlags,
    will_properties: WillPropertyFlags,
) -> None:
    """Publish messages.

    Exits with 0 when the broker has acknowledged all of them (QoS 1 and 2). Speaks MQTT 3.1.1, or
    MQTT 5 with -V 5 or with a flag that needs it.
    """
    # Other commands do not load the MQTT client.
    from cli.clients import client_session, pub
    from cli.clients import connection as client
    from cli.logs.topic_flags import check_topic

    check_topic(topic)
    session = client_session.session_of(
        broker, connection, will, will_properties, given_flags(message_flags)
    )
    fields = client_session.message_fields_of(message_flags)
    source = sys.stdin.buffer if lines else None
    payloads = pub.payloads(message, file, null=null, lines=source)
    with pub.Publisher(client.target_of(broker), session, fields) as publisher:
        for payload in payloads:
            publisher.publish(topic, payload, qos, retain=retain)


def _sub(
    *,
    topics: Annotated[
        list[str],
        typer.Option(
            "-t",
            "--topic",
            metavar="FILTER",
            help="Topic filter to subscribe to; shared: $share/NAME/FILTER. May be repeated.",
        ),
    ],
    qos: Qos = 0,
    count: Annotated[
        int | None,
        typer.Option("-C", "--count", metavar="N", min=1, help="Exit after this many messages."),
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(
            "-W",
            "--timeout",
            metavar="SECONDS",
            min=0,
            help="Exit with code 27 after this many seconds.",
        ),
    ] = None,
    only_subscribe: Annotated[
        bool,
        typer.Option(
            "-E", "--only-subscribe", help="Exit when the broker has acknowledged the subscription."
        ),
    ] = False,
    verbose: Annotated[
        bool, typer.Option("-v", "--verbose", help="Print the topic before the payload.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object per message, with its properties."),
    ] = False,
    line: Annotated[
        str | None,
        typer.Option(
            "-F",
            "--format",
            metavar="TEXT",
            help="Format of the output, with %t topic, %p payload, %l its length, %q QoS, "
            "%r retain, %C content type, %D correlation data, %E message expiry, %F payload "
            "format, %P user properties, %R response topic, %S subscription identifiers.",
        ),
    ] = None,
    broker: BrokerFlags,
    options: SubscribePropertyFlags,
    connection: ConnectPropertyFlags,
    will: WillFlags,
    will_properties: WillPropertyFlags,
) -> None:
    """Subscribe and print the messages.

    Waits for the broker if it cannot be reached, and reconnects if the connection is lost. With -i,
    -c and -E, creates a session in which the broker queues messages for later. Speaks MQTT 3.1.1,
    or MQTT 5 with -V 5 or with a flag that needs it.
    """
    from cli.clients import client_session, message_text, option_values, sub
    from cli.clients import connection as client
    from cli.clients.client_errors import BadArgumentError

    if only_subscribe and count is not None:
        raise BadArgumentError("-E and -C cannot be combined: -E exits before the first message")
    if sum((verbose, as_json, line is not None)) > 1:
        raise BadArgumentError("use at most one of -v, --json and -F")
    session = client_session.session_of(
        broker, connection, will, will_properties, given_flags(options)
    )
    for topic in topics:
        option_values.check_filter_of_level(topic, session.level)
        if options.no_local and topic.startswith("$share/"):
            raise BadArgumentError(f"--no-local cannot be combined with a shared filter: {topic}")
    style: message_text.Style = "json" if as_json else "verbose" if verbose else "payload"
    if line is not None:
        style = message_text.Template(line)
    request = sub.SubscriptionRequest(
        tuple(topics),
        qos,
        options.no_local,
        options.retain_as_published,
        _handling(options.retain_handling),
        options.subscription_identifier,
    )
    subscriber = sub.Subscriber(
        client.target_of(broker), request, session, out=sys.stdout.buffer, style=style
    )
    subscriber.run(0 if only_subscribe else count, timeout)


def _handling(word: str | None) -> int:
    from cli.clients.client_errors import BadArgumentError

    if word is not None and word not in _HANDLINGS:
        raise BadArgumentError(f"--retain-handling {word!r}: must be always, new or never")
    return 0 if word is None else _HANDLINGS.index(word)
