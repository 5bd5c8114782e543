"""``foldmq pub``: publish messages and wait until the broker has acknowledged them."""

import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO, Self, cast

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from cli.clients.client_errors import BadArgumentError, ClientError
from cli.clients.client_session import ClientSession, MessageProperties
from cli.clients.connection import (
    CONNACK_TIMEOUT,
    Target,
    broker_reason,
    connect,
    new_client,
    properties_of,
    refusal,
)

# Maximum number of messages passed to the client library and not acknowledged.
WINDOW = 1000


def payloads(
    message: str | None, file: Path | None, *, null: bool, lines: BinaryIO | None
) -> Iterable[bytes]:
    """Return the payloads of the one source that was given.

    Raises BadArgumentError if there is not exactly one, or if the file cannot be read.
    """
    named = [message is not None, file is not None, null, lines is not None]
    if sum(named) != 1:
        raise BadArgumentError("use exactly one of -m, -f, -n and -l")
    if message is not None:
        return [message.encode("utf-8", "surrogateescape")]
    if file is not None:
        try:
            return [file.read_bytes()]
        except OSError as error:
            raise BadArgumentError(f"{file}: cannot read: {error.strerror}") from None
    return _lines(lines) if lines is not None else [b""]


def _lines(file: BinaryIO) -> Iterator[bytes]:
    for line in file:
        yield line.removesuffix(b"\n").removesuffix(b"\r")


class Publisher:
    """A connected client; the end of its ``with`` block waits for all acknowledgements."""

    def __init__(
        self,
        target: Target,
        session: ClientSession,
        fields: MessageProperties,
    ) -> None:
        """Create the client, not connected; ``fields``: properties of its messages."""
        self._target = target
        self._session = session
        self._fields = fields
        self._alias = cast("int", fields.get("TopicAlias") or 0)
        self._window = WINDOW
        self._changed = threading.Condition()
        self._connected = False
        self._failure: ClientError | None = None
        self._sent = 0
        self._acknowledged = 0
        self._topic = ""
        self._client = new_client(target, session)
        self._client.max_inflight_messages_set(WINDOW)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_publish = self._on_publish

    def __enter__(self) -> Self:
        """Connect; raises ClientError if the broker cannot be reached or refuses."""
        connect(self._client, self._target, self._session)
        self._client.loop_start()
        try:
            self._wait_connected()
        except BaseException:
            self._client.loop_stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Wait for the acknowledgements, unless an exception is raised, and disconnect."""
        try:
            if error is None:
                self._wait_below(1)
        finally:
            self._client.disconnect()
            self._client.loop_stop()

    def publish(
        self,
        topic: str,
        payload: bytes,
        qos: int,
        *,
        retain: bool,
        fields: MessageProperties | None = None,
    ) -> None:
        """Send one message; ``fields``: its properties, if not those of all messages.

        Raises ClientError, or BadArgumentError for an invalid topic or payload.
        """
        self._wait_below(self._window)
        with self._changed:
            self._topic = topic
            self._sent += 1
        name, properties = self._properties(topic, fields or self._fields)
        try:
            info = self._client.publish(name, payload, qos, retain, properties)
        except ValueError as error:
            raise BadArgumentError(f"cannot publish to {topic!r}: {error}") from None
        if info.rc not in (mqtt.MQTT_ERR_SUCCESS, mqtt.MQTT_ERR_NO_CONN):
            raise ClientError(f"cannot publish to {topic!r}: {mqtt.error_string(info.rc)}")

    def _properties(self, topic: str, fields: MessageProperties) -> tuple[str, Properties | None]:
        """Return topic and properties of a message; empty topic if its alias is known."""
        if self._session.level < 5:
            return topic, None
        properties = properties_of(PacketTypes.PUBLISH, fields)
        is_known = fields.get("TopicAlias") is not None and self._sent > 1
        return ("" if is_known else topic), properties

    def _wait_connected(self) -> None:
        with self._changed:
            if not self._changed.wait_for(self._connected_or_failed, CONNACK_TIMEOUT):
                raise ClientError(f"{self._target.address} does not answer")
        self._raise_failure()

    def _wait_below(self, limit: int) -> None:
        with self._changed:
            self._changed.wait_for(
                lambda: self._failure is not None or self._sent - self._acknowledged < limit
            )
        if self._sent > self._acknowledged:
            self._raise_failure()

    def _connected_or_failed(self) -> bool:
        return self._connected or self._failure is not None

    def _raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    def _on_connect(
        self,
        _client: mqtt.Client,
        _userdata: object,
        _flags: mqtt.ConnectFlags,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        with self._changed:
            if code.is_failure:
                self._failure = refusal(self._target, code, properties, self._session.level)
            self._window = min(WINDOW, getattr(properties, "ReceiveMaximum", WINDOW))
            most = getattr(properties, "TopicAliasMaximum", 0)
            if self._failure is None and self._alias > most:
                self._failure = BadArgumentError(
                    f"--topic-alias {self._alias}: {self._target.address} allows "
                    + (f"1 to {most}" if most else "none")
                )
            self._connected = not code.is_failure
            self._changed.notify_all()

    def _on_disconnect(
        self,
        _client: mqtt.Client,
        _userdata: object,
        flags: mqtt.DisconnectFlags,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        with self._changed:
            if self._failure is None:
                lost = f"connection to {self._target.address} lost"
                open_ = self._sent - self._acknowledged
                if flags.is_disconnect_packet_from_server:
                    reason = broker_reason(code, properties)
                    lost = f"{self._target.address} closed the connection: {reason}"
                elif not self._sent:
                    lost = f"connection to {self._target.address} lost before it was accepted"
                self._failure = ClientError(
                    f"{lost}; messages not acknowledged: {open_}" if open_ else lost
                )
            self._changed.notify_all()

    def _on_publish(
        self,
        _client: mqtt.Client,
        _userdata: object,
        _mid: int,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        with self._changed:
            if code.is_failure and self._failure is None:
                reason = broker_reason(code, properties)
                self._failure = ClientError(
                    f"{self._target.address} refused a message to {self._topic!r}: {reason}"
                )
            else:
                self._acknowledged += 1
            self._changed.notify_all()
