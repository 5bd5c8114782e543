"""A network connection of a client to a broker: bytes to packets, CONNECT, keep alive, its end."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from eventstore.edited_files import client_context, unmarked_pair
from outbox.mqtt.handshake import check_connack, code_text, keep_alive_of
from outbox.mqtt.options import ConnectionOptions, PeerAddress, PeerTls
from protocol.errors import FoldmqError
from protocol.mqtt.encoder import DISCONNECT, PINGREQ
from protocol.mqtt.packets import Acks, PacketType
from protocol.mqtt.server_decoder import ServerDecoder
from protocol.mqtt.server_packet_decoder import Answer, ServerPacket

if TYPE_CHECKING:
    from outbox.mqtt.flows import Flow

_CONNECT_SECONDS: Final = 10.0
"""Time for the network connection, and again for the CONNACK."""
_TLS_VERSIONS: Final = {"tlsv1.2": ssl.TLSVersion.TLSv1_2, "tlsv1.3": ssl.TLSVersion.TLSv1_3}
_ACKS: Final = frozenset(
    {PacketType.PUBACK, PacketType.PUBREC, PacketType.PUBREL, PacketType.PUBCOMP}
)


class PeerUnavailableError(FoldmqError):
    """There is no connection to the other broker."""

    def __init__(self, reason: str, *, misconfigured: bool = False) -> None:
        super().__init__(reason)
        self.misconfigured = misconfigured


class LocalAddress(NamedTuple):
    """A listener of this broker."""

    host: str
    port: int
    path: str = ""
    """Path of a Unix socket, which is used instead if it is not empty."""


class LinkOptions(NamedTuple):
    """How a connection behaves."""

    version: int
    """Protocol level: 3, 4 or 5."""
    keep_alive: int
    """Seconds."""
    max_packet: int
    """Size in bytes of the largest packet that is read."""
    tcp_keepalive: tuple[int, int, int] | None = None


class PeerConnection(asyncio.Protocol):
    """A connection, from CONNECT to its end; ``changed`` is called after whatever happens."""

    def __init__(self, options: LinkOptions, flow: Flow, changed: Callable[[], None]) -> None:
        self.ended: str | None = None
        """Why it has ended."""
        self.closed = asyncio.Event()
        self.on_room: Callable[[bool], None] | None = None
        """Called when it can send no more (False), and when it can again."""
        self._options = options
        self._flow = flow
        self._changed = changed
        self._loop = asyncio.get_running_loop()
        self._decoder = ServerDecoder(options.version, options.max_packet)
        self._transport: asyncio.Transport | None = None
        self._connack: asyncio.Future[Answer] = self._loop.create_future()
        self._ready = False
        """Whether messages may be sent."""
        self._paused = False
        self._keep_alive = 0
        self._timer: asyncio.TimerHandle | None = None
        self._written = False
        """Whether anything was sent since the last look at the keep alive."""
        self._pinged = False
        """Whether a PINGRESP is awaited."""

    # Called by the sink.

    async def connect(self, packet: bytes) -> Answer:
        """Send a CONNECT; return the CONNACK that accepts.

        Raises PeerRefusedError or PeerUnavailableError.
        """
        self.write(packet)
        try:
            async with asyncio.timeout(_CONNECT_SECONDS):
                connack = await self._connack
        except TimeoutError:
            self.end(f"no CONNACK within {_CONNECT_SECONDS:g} s")
            raise PeerUnavailableError(self.ended or "") from None
        check_connack(connack, self._options.version)
        return connack

    def begin(self, connack: Answer) -> None:
        """Begin to send messages: the flow has taken the CONNACK."""
        self._ready = True
        self._keep_alive = keep_alive_of(connack, self._options.keep_alive)
        if self._keep_alive:
            self._timer = self._loop.call_later(self._keep_alive / 2, self._check)
        self.pump()

    def pump(self) -> None:
        """Send what may be sent now."""
        while self._ready and not self._paused and (data := self._flow.packets()):
            self.write(data)

    @property
    def has_room(self) -> bool:
        """Whether more may be sent now."""
        return self._ready and not self._paused

    def write(self, data: bytes) -> None:
        """Send packets."""
        self._written = True
        if data and self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    def hold(self, *, reading: bool) -> None:
        """Stop or continue to read."""
        if self._transport is not None and not self._transport.is_closing():
            if reading:
                self._transport.resume_reading()
            else:
                self._transport.pause_reading()

    def leave(self) -> None:
        """End the connection in order."""
        self.write(DISCONNECT)
        self.end("closed by this broker")

    def end(self, reason: str) -> None:
        """End the connection."""
        if self.ended is not None:
            return
        self.ended = reason
        if self._ready:
            self._flow.disconnected()
        self._ready = False
        if self._timer is not None:
            self._timer.cancel()
        if self._transport is not None:
            self._transport.close()
        if not self._connack.done():
            self._connack.set_exception(PeerUnavailableError(reason))
            self._connack.exception()  # nobody may wait for it
        self.closed.set()
        self._changed()

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Keep the transport."""
        self._transport = cast("asyncio.Transport", transport)
        if self._options.tcp_keepalive is not None:
            _keep_tcp_alive(self._transport, self._options.tcp_keepalive)

    def data_received(self, data: bytes) -> None:
        """Handle packets of the peer."""
        if self.ended is not None:
            return
        try:
            for packet in self._decoder.feed(data):
                self._handle(packet)
            if self._decoder.error is not None:
                raise self._decoder.error
        except FoldmqError as error:
            self.end(f"the other broker violates the standard or is busy: {error}")
            return
        self.pump()
        self._changed()

    def connection_lost(self, exc: Exception | None) -> None:
        """Handle the end of the network connection."""
        lost = f"connection lost: {error_text(exc)}" if exc is not None else "connection closed"
        self.end(lost)

    def pause_writing(self) -> None:
        """Stop sending: the broker reads slowly."""
        self._paused = True
        if self.on_room is not None:
            self.on_room(False)

    def resume_writing(self) -> None:
        """Send again."""
        self._paused = False
        if self.on_room is not None:
            self.on_room(True)
        self.pump()

    # How it works.

    def _handle(self, packet: ServerPacket) -> None:
        if isinstance(packet, Acks):
            self._flow.acknowledged(packet.kind, packet.packet_ids, packet.reasons)
        elif isinstance(packet, Answer):
            self._handle_answer(packet)
        else:
            self._flow.published(packet)

    def _handle_answer(self, packet: Answer) -> None:
        kind = packet.kind
        if kind in _ACKS:
            self._flow.acknowledged(kind, [packet.packet_id], [packet.reason])
        elif kind is PacketType.CONNACK:
            if not self._connack.done():
                self._connack.set_result(packet)
        elif kind is PacketType.SUBACK:
            self._flow.granted(packet.codes)
        elif kind is PacketType.PINGRESP:
            self._pinged = False
        elif kind is PacketType.DISCONNECT:
            self.end(f"the other broker ends the connection: {code_text(packet.reason)}")

    def _check(self) -> None:
        """Send a PINGREQ if nothing was sent for half of the keep alive."""
        if self._pinged:
            self.end(f"no PINGRESP within {self._keep_alive / 2:g} s")
            return
        if not self._written:
            self._pinged = True
            self.write(PINGREQ)
        self._written = False
        self._timer = self._loop.call_later(self._keep_alive / 2, self._check)


async def dial(
    options: ConnectionOptions,
    address: PeerAddress,
    make: Callable[[], PeerConnection],
) -> PeerConnection:
    """Open a network connection; raises PeerUnavailableError."""
    context = tls_context(options.tls) if options.tls is not None else None
    bind = (options.bind_address, 0) if options.bind_address is not None else None
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            _, connection = await loop.create_connection(
                make, address.host, address.port, ssl=context, local_addr=bind
            )
    except TimeoutError:
        raise PeerUnavailableError(f"{address}: no connection within 10 s") from None
    except ssl.SSLCertVerificationError as error:
        raise PeerUnavailableError(
            f"{address}: the certificate is not trusted: {error.verify_message} "
            "(see bridge_cafile)",
            misconfigured=True,
        ) from None
    except (OSError, UnicodeError) as error:
        raise PeerUnavailableError(f"{address}: {error_text(error)}") from None
    return connection


async def dial_local(address: LocalAddress, make: Callable[[], PeerConnection]) -> PeerConnection:
    """Open a network connection to this broker; raises PeerUnavailableError."""
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(_CONNECT_SECONDS):
            if address.path:
                _, connection = await loop.create_unix_connection(make, address.path)
            else:
                _, connection = await loop.create_connection(make, address.host, address.port)
    except (OSError, TimeoutError) as error:
        raise PeerUnavailableError(f"this broker: {error_text(error)}") from None
    return connection


def password_of(options: ConnectionOptions) -> str | None:
    """Return the password of a connection; raises PeerUnavailableError."""
    if options.password_file is None:
        return options.password
    try:
        return options.password_file.read_text("utf-8-sig").split("\n")[0].rstrip("\r")
    except (OSError, UnicodeDecodeError) as error:
        raise PeerUnavailableError(
            f"remote_password_file: {error_text(error)}", misconfigured=True
        ) from None


def tls_context(tls: PeerTls) -> ssl.SSLContext:
    """Return the TLS context of a new connection, from the files as they are now.

    Raises PeerUnavailableError if they cannot be used.
    """
    named = tls.authorities
    try:
        context = client_context(tls.authorities)
        if tls.certificate is not None:
            named = tls.certificate
            with unmarked_pair(tls.certificate, tls.key) as (certificate, key):
                context.load_cert_chain(certificate, key)
    except OSError as error:  # ssl.SSLError is one
        invalid = "not PEM, or certificate and key do not match"
        reason = invalid if isinstance(error, ssl.SSLError) else error.strerror
        raise PeerUnavailableError(f"{named}: {reason}", misconfigured=True) from None
    context.minimum_version = _TLS_VERSIONS[tls.minimum_version]
    context.check_hostname = not tls.insecure
    if tls.alpn is not None:
        context.set_alpn_protocols([tls.alpn])
    return context


def error_text(error: Exception) -> str:
    """Return a system error for display."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return f"TLS: {error.reason.replace('_', ' ').lower()}"
    return (error.strerror if isinstance(error, OSError) else None) or str(error)


def _keep_tcp_alive(transport: asyncio.Transport, values: tuple[int, int, int]) -> None:
    opened = transport.get_extra_info("socket")
    opened.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), values, strict=True):
        if hasattr(socket, name):  # not on every system
            opened.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
