"""The commands ``foldmq pub`` and ``foldmq sub``."""

import sys

from cli.clients.client_options import (
    BrokerFlags,
    ConnectPropertyFlags,
    MessagePropertyFlags,
    PublishFlags,
    SubscribeFlags,
    SubscribePropertyFlags,
    WillFlags,
    WillPropertyFlags,
)
from cli.common.option_groups import given_flags, with_option_groups
from cli.program.help_pages import Program

_HANDLINGS = ("always", "new", "never")


def register_client_commands(app: Program) -> None:
    """Add the commands to the program."""
    app.command("pub")(with_option_groups(_pub))
    app.command("sub")(with_option_groups(_sub))


def _pub(
    messages: PublishFlags,
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

    check_topic(messages.topic)
    session = client_session.session_of(
        broker, connection, will, will_properties, given_flags(message_flags)
    )
    fields = client_session.message_properties(message_flags)
    source = sys.stdin.buffer if messages.lines else None
    payloads = pub.payloads(messages.message, messages.file, null=messages.null, lines=source)
    with pub.Publisher(client.target_of(broker), session, fields) as publisher:
        for payload in payloads:
            publisher.publish(messages.topic, payload, messages.qos, retain=messages.retain)


def _sub(
    subscription: SubscribeFlags,
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

    if subscription.only_subscribe and subscription.count is not None:
        raise BadArgumentError("-E and -C cannot be combined: -E exits before the first message")
    line = subscription.format
    if sum((subscription.verbose, subscription.as_json, line is not None)) > 1:
        raise BadArgumentError("use at most one of -v, --json and -F")
    session = client_session.session_of(
        broker, connection, will, will_properties, given_flags(options)
    )
    for topic in subscription.topics:
        option_values.check_filter_of_level(topic, session.level)
        if options.no_local and topic.startswith("$share/"):
            raise BadArgumentError(f"--no-local cannot be combined with a shared filter: {topic}")
    style: message_text.Style = "verbose" if subscription.verbose else "payload"
    if subscription.as_json:
        style = "json"
    if line is not None:
        style = message_text.Template(line)
    request = sub.SubscriptionRequest(
        tuple(subscription.topics),
        subscription.qos,
        options.no_local,
        options.retain_as_published,
        _handling(options.retain_handling),
        options.subscription_identifier,
    )
    subscriber = sub.Subscriber(
        client.target_of(broker), request, session, out=sys.stdout.buffer, style=style
    )
    subscriber.run(0 if subscription.only_subscribe else subscription.count, subscription.timeout)


def _handling(word: str | None) -> int:
    from cli.clients.client_errors import BadArgumentError

    if word is not None and word not in _HANDLINGS:
        raise BadArgumentError(f"--retain-handling {word!r}: must be always, new or never")
    return 0 if word is None else _HANDLINGS.index(word)
