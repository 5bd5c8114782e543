"""``foldmq import retained``: copies the retained messages of another broker over MQTT."""

from __future__ import annotations

import io
import sys
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from cli.clients import client_errors, client_session, connection, message_text, pub, sub
from cli.common import text
from protocol.mqtt.topics import is_reserved_topic

if TYPE_CHECKING:
    import paho.mqtt.client as mqtt


_EVERYTHING: Final = sub.SubscriptionRequest(("#",), 2, False, False, 0, None)
_SHOWN: Final = 10


class _Collector(sub.Subscriber):
    """Receives retained messages, until none has come for a time."""

    def __init__(
        self, target: connection.Target, session: client_session.ClientSession, quiet: float
    ) -> None:
        super().__init__(target, _EVERYTHING, session, out=io.BytesIO(), style="payload")
        self._quiet = quiet
        self._latest = 0.0
        self.messages: dict[str, mqtt.MQTTMessage] = {}

    @property
    def _done(self) -> bool:
        return self._ready and time.monotonic() - self._latest > self._quiet

    def _connect(self, deadline: float | None) -> None:
        del deadline  # a broker that does not listen is an error
        connection.connect(self._client, self._target, self._session)

    def _on_subscribe(self, *values: object) -> None:
        super()._on_subscribe(*values)  # type: ignore[arg-type]  # as they came
        self._latest = time.monotonic()

    def _on_message(
        self, client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage
    ) -> None:
        if message.qos:
            client.ack(message.mid, message.qos)
        if message.retain:
            self._latest = time.monotonic()
            if not is_reserved_topic(message.topic):
                self.messages[message.topic] = message


def collect_retained(
    target: connection.Target, level: int | None, quiet: float
) -> tuple[int, Mapping[str, mqtt.MQTTMessage]]:
    """Return the retained messages of a broker by topic, and the protocol level.

    Without a level, tries MQTT 5, then MQTT 3.1.1. ``quiet`` is the number of seconds without a
    message after which there are no more. Raises ClientError.
    """
    for tried in (5, 4) if level is None else (level,):
        collector = _Collector(target, client_session.ClientSession(level=tried), quiet)
        try:
            collector.run(None, None)
        except client_errors.ClientError:
            if level is None and tried == 5:
                continue
            raise
        break
    return tried, collector.messages


def copy_retained(
    source: connection.Target, level: int | None, target: connection.Target, quiet: float
) -> bool:
    """Copy retained messages to topics that have none; return whether all arrived.

    Raises ClientError if a broker cannot be reached, refuses the client, or refuses a message.
    """
    _, messages = collect_retained(source, level, quiet)
    ours, before = collect_retained(target, None, quiet)
    new_messages = {topic: message for topic, message in messages.items() if topic not in before}
    with pub.Publisher(target, client_session.ClientSession(level=ours), {}) as publisher:
        for topic, message in new_messages.items():
            fields = message_text.properties_by_name(message)
            payload = bytes(message.payload)
            publisher.publish(topic, payload, message.qos, retain=True, fields=fields)
    # At QoS 0 nothing is acknowledged, and what permissions deny is dropped.
    _, after = collect_retained(target, ours, quiet)
    missing = sorted(topic for topic in new_messages if topic not in after)
    copied = text.count_of(len(new_messages) - len(missing), "retained message")
    sys.stdout.write(f"{copied} copied from {source.address} to {target.address}\n")
    kept = len(messages) - len(new_messages)
    if kept:
        sys.stdout.write(f"{text.count_of(kept, 'topic')} had one already, which was kept\n")
    if missing:
        names = text.several(map(text.name, missing), _SHOWN)
        sys.stderr.write(f"not found at {target.address} afterwards: {names}\n")
    return not missing
