"""``foldmq sub``: prints messages, and acknowledges each once it is printed."""

import contextlib
import os
import socket
import sys
import time
from dataclasses import dataclass
from typing import BinaryIO

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.reasoncodes import ReasonCode
from paho.mqtt.subscribeoptions import SubscribeOptions

from cli.clients.client_errors import (
    PASSING,
    BadArgumentError,
    ClientError,
    UnreachableError,
)
from cli.clients.client_session import ClientSession
from cli.clients.connection import (
    CONNACK_TIMEOUT,
    Target,
    broker_reason,
    connect,
    new_client,
    properties_of,
    refusal,
)
from cli.clients.message_text import Style, render

TIMED_OUT = 27  # as mosquitto_sub
RETRY = 1.0  # seconds between attempts to reconnect
LINGER = 2.0  # seconds to wait for the broker to close the connection


@dataclass(frozen=True, slots=True)
class SubscriptionRequest:
    """The subscriptions of a client; everything but filters and QoS needs MQTT 5."""

    filters: tuple[str, ...]
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0
    identifier: int | None = None

    def send(self, client: mqtt.Client, level: int) -> None:
        """Send SUBSCRIBE; raises ValueError for a filter that the library rejects."""
        if level < 5:
            client.subscribe([(topic, self.qos) for topic in self.filters])
            return
        options = SubscribeOptions(
            self.qos, self.no_local, self.retain_as_published, self.retain_handling
        )
        values = {"SubscriptionIdentifier": self.identifier}
        properties = properties_of(PacketTypes.SUBSCRIBE, values)
        client.subscribe([(topic, options) for topic in self.filters], properties=properties)


class Subscriber:
    """Subscribes and prints messages; reconnects when the connection is lost.

    Everything runs in the calling thread, so that a blocked reader of the output stops the broker
    from sending more.
    """

    def __init__(
        self,
        target: Target,
        request: SubscriptionRequest,
        session: ClientSession,
        *,
        out: BinaryIO,
        style: Style,
    ) -> None:
        """Create the client, not connected."""
        self._target = target
        self._request = request
        self._session = session
        self._out = out
        self._style = style
        self._left: int | None = None
        self._failure: ClientError | None = None
        self._lost = ""
        self._ready = False
        self._client = new_client(target, session)
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
        reported = False
        while True:
            try:
                connect(self._client, self._target, self._session)
            except UnreachableError as error:
                pause = RETRY if deadline is None else min(RETRY, deadline - time.monotonic())
                if pause <= 0:
                    raise ClientError(f"timed out: {error}", TIMED_OUT) from None
                if not reported:
                    sys.stderr.write(f"foldmq: {error}, trying again\n")
                    reported = True
                time.sleep(pause)
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
        with socket.socket(fileno=os.dup(connection.fileno())) as remainder:
            self._client.disconnect()
            remainder.settimeout(LINGER)
            end = time.monotonic() + LINGER
            with contextlib.suppress(OSError):
                while remainder.recv(65536) and time.monotonic() < end:
                    continue

    def _connect_again(self, deadline: float | None) -> float:
        """Retry until connected or past the deadline; return the time of the connection."""
        sys.stderr.write(f"foldmq: {self._lost}, trying again\n")
        self._ready = False
        while deadline is None or time.monotonic() < deadline:
            time.sleep(RETRY)
            try:
                connect(self._client, self._target, self._session, again=True)
            except ClientError:
                continue
            self._lost = ""
            break
        return time.monotonic()

    def _on_connect(
        self,
        client: mqtt.Client,
        _userdata: object,
        _flags: mqtt.ConnectFlags,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        if code.is_failure:
            self._failure = refusal(self._target, code, properties, self._session.level)
            return
        try:
            self._request.send(client, self._session.level)
        except ValueError as error:
            self._failure = BadArgumentError(f"cannot subscribe: {error}")

    def _on_disconnect(
        self,
        _client: mqtt.Client,
        _userdata: object,
        flags: mqtt.DisconnectFlags,
        code: ReasonCode,
        properties: Properties | None,
    ) -> None:
        self._lost = f"connection to {self._target.address} lost"
        if flags.is_disconnect_packet_from_server:
            reason = broker_reason(code, properties)
            self._lost = f"{self._target.address} closed the connection: {reason}"
            if code.value not in PASSING:
                self._failure = self._failure or ClientError(self._lost)

    def _on_subscribe(
        self,
        _client: mqtt.Client,
        _userdata: object,
        _mid: int,
        codes: list[ReasonCode],
        properties: Properties | None,
    ) -> None:
        self._ready = True
        for topic_filter, code in zip(self._request.filters, codes, strict=False):
            if code.is_failure:
                why = f": {broker_reason(code, properties)}" if self._session.level == 5 else ""
                self._failure = ClientError(
                    f"{self._target.address} refused the subscription to {topic_filter!r}{why}"
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
