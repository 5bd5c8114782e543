"""The stages between the sockets of a listener and its connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.transports.handshakes import Handshakes
from actors.transports.peer import Network, is_trusted
from actors.transports.proxy_protocol import ProxyStage
from actors.transports.tls import TlsStage
from actors.transports.websocket import WebSocketOptions, WebSocketStage, WebSocketStats

if TYPE_CHECKING:
    import asyncio
    import ssl


@dataclass(frozen=True, slots=True)
class StackOptions:
    """The protocols of a listener, from the outside in; None: not used."""

    proxy: tuple[Network, ...] | None = None
    """Networks of the trusted proxies."""
    tls_context: ssl.SSLContext | None = None
    handshakes: Handshakes | None = None
    """Threads for TLS; needed with ``tls_context``."""
    tls_timeout: float | None = None
    """Timeout of a TLS handshake in seconds; None: that of the CONNECT."""
    websocket: WebSocketOptions | None = None
    websocket_stats: WebSocketStats = field(default_factory=WebSocketStats)
    max_frame: int = 384 * 1024
    """Maximum bytes of a WebSocket frame until ``WebSocketStage.max_size`` is set: the longest
    CONNECT has five fields of 64 KiB."""

    def hides_clients(self, host: str) -> bool:
        """Return whether a connection from ``host`` is that of a proxy, which names the client."""
        if self.proxy is not None:
            return True
        trusted = self.websocket.trusted if self.websocket is not None else ()
        return bool(trusted and host) and is_trusted((host, 0), trusted)


def build_stack(upper: asyncio.Protocol, options: StackOptions) -> asyncio.Protocol:
    """Return the protocol for a new socket: the stages of a listener, with ``upper`` on top."""
    protocol = upper
    if options.websocket is not None:
        protocol = WebSocketStage(
            protocol, options.websocket, options.websocket_stats, options.max_frame
        )
    if options.tls_context is not None:
        assert options.handshakes is not None  # noqa: S101 - said in StackOptions
        protocol = TlsStage(protocol, options.tls_context, options.handshakes, options.tls_timeout)
    if options.proxy is not None:
        protocol = ProxyStage(protocol, options.proxy)
    return protocol
