"""``foldmq sub``: prints messages, and acknowledges each once it is printed."""

import base64
import contextlib
import os
import socket
import sys
import time
from typing import BinaryIO, Literal

import orjson
import paho.mqtt.client as mqtt
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode

from cli.clients.connection import (
    CONNACK_TIMEOUT,
    BadArgumentError,
    ClientError,
    Target,
    UnreachableError,
    connect,
    new_client,
    refusal,
)
from cli.common import printable

TIMED_OUT = 27  # as mosquitto_sub
RETRY = 1.0  # seconds between attempts to reconnect
LINGER = 2.0  # seconds to wait for the broker to close the connection

Style = Literal["payload", "verbose", "json"]


def render(message: mqtt.MQTTMessage, style: Style, *, terminal: bool) -> bytes:
    """Return the line for ``message``, without a newline.

    On a terminal control characters are escaped; otherwise the payload is unchanged.
    """
    if style == "json":
        return _as_json(message)
    payload = bytes(message.payload)
    if terminal:
        text = payload.decode("utf-8", "backslashreplace")
        payload = "\n".join(printable(line) for line in text.split("\n")).encode()
    if style == "payload":
        return payload
    topic = printable(message.topic) if terminal else message.topic
    return topic.encode() + b" " + payload


def _as_json(message: mqtt.MQTTMessage) -> bytes:
    fields: dict[str, object] = {
        "topic": message.topic,
        "qos": message.qos,
        "retain": message.retain,
    }
    try:
        fields["payload"] = message.payload.decode("utf-8")
    except UnicodeDecodeError:
        fields["payload_base64"] = base64.b64encode(message.payload).decode("ascii")
    return orjson.dumps(fields)


class Subscriber:
    """Subscribes and prints messages; reconnects when the connection is lost.

    Everything runs in the calling thread, so that a blocked reader of the output stops the broker
    from sending more.
    """

    def __init__(
        self,
        target: Target,
        filters: list[tuple[str, int]],
        client_id: str | None,
        *,
        persistent: bool,
        out: BinaryIO,
        style: Style,
    ) -> None:
        """Create the client, not connected; raises BadArgumentError without a client ID to keep."""
        self._target = target
        self._filters = filters
        self._out = out
        self._style = style
        self._left: int | None = None
        self._failure: ClientError | None = None
        self._lost = False
        self._ready = False
        self._client = new_client(target, client_id, persistent=persistent, reconnect=False)
        self._client.on_connect = self._on_connect
        self._client.on_disconnect = self._on_disconnect
        self._client.on_subscribe = self._on_subscribe
        self._client.on_message = self._on_message

    def run(self, count: int | None, timeout: float | None) -> None:
        """Print ``count`` messages, for at most ``timeout`` seconds; None: no limit.

        With a count of 0, return when the broker has acknowledged the subscriptions. Raises
        ClientError if no broker answers, it refuses, or the time is over (exit code 27).
        """
        self._left = count
        deadline = None if timeout is None else time.monotonic() + timeout
        self._connect(deadline)
        started = time.monotonic()
        try:
            while not self._done:
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise ClientError(f"timed out after {timeout:g} s", TIMED_OUT)
                if not self._ready and now - started > CONNACK_TIMEOUT:
                    raise ClientError(f"{self._target.address} does not answer")
                wait = 1.0 if deadline is None else min(1.0, deadline - now)
                self._client.loop(wait)
                if self._failure is not None:
                    raise self._failure
                if self._lost:
                    started = self._connect_again(deadline)
        finally:
            self._leave()

    @property
    def _done(self) -> bool:
        return self._left is not None and self._left <= 0 and self._ready

    def _connect(self, deadline: float | None) -> None:
        """Connect; retry until a broker listens, or until the deadline."""
        told = False
        while True:
            try:
                connect(self._client, self._target)
            except UnreachableError as error:
                left = RETRY if deadline is None else min(RETRY, deadline - time.monotonic())
                if left <= 0:
                    raise ClientError(f"timed out: {error}", TIMED_OUT) from None
                if not told:
                    sys.stderr.write(f"foldmq: {error}, trying again\n")
                    told = True
                time.sleep(left)
            else:
                return

    def _leave(self) -> None:
        """Disconnect, then read until the broker closes the connection.

        Closing with unread messages would reset the connection, and the reset can overtake the last
        acknowledgements.
        """
        connection = self._client.socket()
        if connection is None:
            return
        # Under TLS and WebSocket this reads the raw socket: only its end matters.
        with socket.socket(fileno=os.dup(connection.fileno())) as rest:
            self._client.disconnect()
            rest.settimeout(LINGER)
            end = time.monotonic() + LINGER
            with contextlib.suppress(OSError):
                while rest.recv(65536) and time.monotonic() < end:
                    continue

    def _connect_again(self, deadline: float | None) -> float:
        """Retry until there is a connection or the deadline is over; return when it was made."""
        sys.stderr.write(f"foldmq: connection to {self._target.address} lost, trying again\n")
        self._ready = False
        while deadline is None or time.monotonic() < deadline:
            time.sleep(RETRY)
            try:
                connect(self._client, self._target)
            except ClientError:
                continue
            self._lost = False
            break
        return time.monotonic()

    def _on_connect(
        self,
        client: mqtt.Client,
        _userdata: object,
        _flags: mqtt.ConnectFlags,
        code: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        if code.is_failure:
            self._failure = refusal(self._target, code)
            return
        try:
            client.subscribe(self._filters)
        except ValueError as error:
            self._failure = BadArgumentError(f"cannot subscribe: {error}")

    def _on_disconnect(
        self,
        _client: mqtt.Client,
        _userdata: object,
        _flags: mqtt.DisconnectFlags,
        _code: ReasonCode,
        _properties: Properties | None,
    ) -> None:
        self._lost = True

    def _on_subscribe(
        self,
        _client: mqtt.Client,
        _userdata: object,
        _mid: int,
        codes: list[ReasonCode],
        _properties: Properties | None,
    ) -> None:
        self._ready = True
        for (topic_filter, _), code in zip(self._filters, codes, strict=False):
            if code.is_failure:
                self._failure = ClientError(
                    f"{self._target.address} refused the subscription to {topic_filter!r}"
                )

    def _on_message(
        self, client: mqtt.Client, _userdata: object, message: mqtt.MQTTMessage
    ) -> None:
        if self._left == 0:
            # Not acknowledged: a kept session receives it again.
            return
        self._out.write(render(message, self._style, terminal=self._out.isatty()) + b"\n")
        self._out.flush()
        if message.qos:
            client.ack(message.mid, message.qos)
        if self._left is not None:
            self._left -= 1
