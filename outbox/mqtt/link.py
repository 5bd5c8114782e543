"""Opens the connections of a bridge: to the other broker, and to this one for messages in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import structlog

from outbox.mqtt.flows import LocalFlow, PeerFlow
from outbox.mqtt.handshake import (
    CONNECTED,
    DISCONNECTED,
    PeerRefusedError,
    connect_packet,
    limits_of,
    local_connect_packet,
    local_limit,
    state_packet,
    subscribe_packet,
)
from outbox.mqtt.options import ConnectionOptions, PeerAddress
from outbox.mqtt.outbound import Outbound, packet_identifier
from outbox.mqtt.peer import (
    LinkOptions,
    LocalAddress,
    PeerConnection,
    PeerUnavailableError,
    dial,
    dial_local,
    password_of,
)
from outbox.mqtt.relay import Relay
from outbox.mqtt.topic_lines import TopicMap
from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.origin_properties import LogRun, log_of
from protocol.mqtt.reason_codes import ReasonCode
from protocol.mqtt.server_packet_decoder import Answer

_log = structlog.get_logger("foldmq")

_FAR: Final = 32_768
"""Distance of the identifier of SUBSCRIBE from those of messages on their way."""


@dataclass(eq=False, repr=False)
class BridgeLink:
    """The open connections of a bridge; both end together.

    ``_relay`` and ``_local_address`` are there for messages in.
    """

    _options: ConnectionOptions
    _bridged: LogRun
    _outbound: Outbound
    _topics: TopicMap
    _changed: Callable[[], None]
    _relay: Relay | None = None
    _local_address: LocalAddress | None = None

    def __post_init__(self) -> None:
        self._log = self._bridged[0]
        self.peer: PeerConnection
        """The connection to the other broker, once it is open."""
        self._local: PeerConnection | None = None

    def end(self, reason: str) -> None:
        """End both connections."""
        self.peer.end(reason)
        if self._local is not None:
            self._local.end(reason)

    def leave(self) -> None:
        """End both connections in order."""
        if self.peer.ended is None and self._options.notifications:
            self.peer.write(state_packet(self._options, self._log, DISCONNECTED))
        self.peer.leave()
        if self._local is not None:
            self._local.leave()

    async def open(self, address: PeerAddress, *, private: bool) -> None:
        """Connect; raises PeerRefusedError or PeerUnavailableError.

        ``private``: as a bridge, and without that if the other broker knows no bridges.
        """
        options, outbound = self._options, self._outbound
        password = password_of(options)
        clean = outbound.needs_clean_session
        if clean and options.version != MQTT_5:  # its clean session ends with the connection
            flow, _ = await self._connect(address, password, clean=True, private=private)
            self.peer.leave()
            clean = False
        flow, connack = await self._connect(address, password, clean=clean, private=private)
        if self._relay is not None:
            self.peer.hold(reading=False)
            if self._relay.begun and not (connack.session_present or options.clean_session):
                _log.warning(
                    "the other broker has lost the session: what it had queued is lost",
                    connection=options.name,
                )
            try:
                await self._connect_local(self._relay, connack)
            except BaseException:
                self.peer.end("no connection to this broker")
                raise
        outbound.connected(limits_of(connack, options), session_present=connack.session_present)
        self.peer.begin(connack)
        if options.notifications:
            self.peer.write(state_packet(options, self._log, CONNECTED))
        if self._local is not None:
            number = packet_identifier(outbound.number + _FAR)
            subscriptions = self._topics.subscriptions
            self.peer.write(subscribe_packet(subscriptions, number, options.version))
            flow.attach(self._local.write, self.peer.write)
            self.peer.hold(reading=True)

    async def _connect(
        self, address: PeerAddress, password: str | None, *, clean: bool, private: bool
    ) -> tuple[PeerFlow, Answer]:
        options = self._options
        try:
            return await self._attempt(address, password, clean=clean, private=private)
        except PeerRefusedError as error:
            if not private or error.code is not ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
                raise
        _log.info("the other broker knows no bridges", to=options.name)
        return await self._attempt(address, password, clean=clean, private=False)

    async def _attempt(
        self, address: PeerAddress, password: str | None, *, clean: bool, private: bool
    ) -> tuple[PeerFlow, Answer]:
        options = self._options
        flow = PeerFlow(options.name, self._outbound, self._relay)
        link = LinkOptions(
            options.version, options.keep_alive, options.max_packet, options.tcp_keepalive
        )
        self.peer = await dial(
            options, address, lambda: PeerConnection(link, flow, self._peer_changed)
        )
        packet = connect_packet(options, self._bridged, password, clean=clean, private=private)
        try:
            return flow, await self.peer.connect(packet)
        except (PeerRefusedError, asyncio.CancelledError):
            self.peer.end("refused")
            raise

    async def _connect_local(self, relay: Relay, accepted: Answer) -> None:
        options, address = self._options, self._local_address
        clean = not accepted.session_present
        if address is None:
            raise PeerUnavailableError("this broker has no listener for messages in")
        link = LinkOptions(MQTT_5, 60, 1024 * 1024)
        peer = self.peer
        flow = LocalFlow(relay, peer.write)
        local = await dial_local(address, lambda: PeerConnection(link, flow, self._local_changed))
        try:
            connack = await local.connect(local_connect_packet(options, clean=clean))
        except PeerRefusedError as error:
            local.end("refused")
            raise PeerUnavailableError(
                f"this broker refuses its own connection: {error}", misconfigured=True
            ) from None
        except asyncio.CancelledError:
            local.end("cancelled")
            raise
        if not clean and not connack.session_present:
            _log.warning("messages in may come twice", connection=options.name)
        named = log_of(accepted.user)
        relay.begin(local_limit(connack), named[0] if named is not None else "")
        local.on_room = lambda room: peer.hold(reading=room)
        peer.on_room = lambda room: local.hold(reading=room)
        local.begin(connack)
        self._local = local

    def _peer_changed(self) -> None:
        if self._local is not None and self.peer.ended is not None:
            self._local.end(self.peer.ended)
        self._changed()

    def _local_changed(self) -> None:
        if self._local is not None and self._local.ended is not None:
            self.peer.end(f"the connection to this broker has ended: {self._local.ended}")
