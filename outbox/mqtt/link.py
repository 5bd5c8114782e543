"""Opens the connections of a bridge: to the other broker, and to this one for messages in."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
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


class BridgeLink:
    """The open connections of a bridge; both end together."""

    def __init__(
        self,
        options: ConnectionOptions,
        bridged: LogRun,
        outbound: Outbound,
        topics: TopicMap,
        changed: Callable[[], None],
        relay: Relay | None = None,
        local: LocalAddress | None = None,
    ) -> None:
        """``relay`` and ``local`` are there for messages in."""
        self._options = options
        self._bridged = bridged
        self._log = bridged[0]
        self._outbound = outbound
        self._topics = topics
        self._changed = changed
        self._relay = relay
        self._local_address = local
        self._peer: PeerConnection
        self._local: PeerConnection | None = None

    @property
    def ended(self) -> str | None:
        """Why it has ended."""
        return self._peer.ended

    @property
    def closed(self) -> asyncio.Event:
        """Set at its end."""
        return self._peer.closed

    def pump(self) -> None:
        """Send what may be sent now."""
        self._peer.pump()

    def write_live(self, packet: bytes) -> bool:
        """Send a packet if there is room for it now; return whether there was."""
        room = self._peer.has_room
        if room:
            self._peer.write(packet)
        return room

    def end(self, reason: str) -> None:
        """End both connections."""
        self._peer.end(reason)
        if self._local is not None:
            self._local.end(reason)

    def leave(self) -> None:
        """End both connections in order."""
        if self._peer.ended is None and self._options.notifications:
            self._peer.write(state_packet(self._options, self._log, DISCONNECTED))
        self._peer.leave()
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
            self._peer.leave()
            clean = False
        flow, connack = await self._connect(address, password, clean=clean, private=private)
        if self._relay is not None:
            self._peer.hold(reading=False)
            if self._relay.begun and not (connack.session_present or options.clean_session):
                _log.warning(
                    "the other broker has lost the session: what it had queued is lost",
                    connection=options.name,
                )
            try:
                await self._connect_local(self._relay, connack)
            except BaseException:
                self._peer.end("no connection to this broker")
                raise
        outbound.connected(limits_of(connack, options), session_present=connack.session_present)
        self._peer.begin(connack)
        if options.notifications:
            self._peer.write(state_packet(options, self._log, CONNECTED))
        if self._local is not None:
            number = packet_identifier(outbound.number + _FAR)
            subscriptions = self._topics.subscriptions
            self._peer.write(subscribe_packet(subscriptions, number, options.version))
            flow.attach(self._local.write, self._peer.write)
            self._peer.hold(reading=True)

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
        self._peer = await dial(
            options, address, lambda: PeerConnection(link, flow, self._peer_changed)
        )
        packet = connect_packet(options, self._bridged, password, clean=clean, private=private)
        try:
            return flow, await self._peer.connect(packet)
        except (PeerRefusedError, asyncio.CancelledError):
            self._peer.end("refused")
            raise

    async def _connect_local(self, relay: Relay, accepted: Answer) -> None:
        options, address = self._options, self._local_address
        clean = not accepted.session_present
        if address is None:
            raise PeerUnavailableError("this broker has no listener for messages in")
        link = LinkOptions(MQTT_5, 60, 1024 * 1024)
        peer = self._peer
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
        if self._local is not None and self._peer.ended is not None:
            self._local.end(self._peer.ended)
        self._changed()

    def _local_changed(self) -> None:
        if self._local is not None and self._local.ended is not None:
            self._peer.end(f"the connection to this broker has ended: {self._local.ended}")
