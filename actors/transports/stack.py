"""Which stages stand between the sockets of a listener and its connections."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from actors.transports.proxy_protocol import Network, ProxyStage
from actors.transports.tls import TlsStage
from actors.transports.websocket import WebSocketOptions, WebSocketStage, WebSocketStats

if TYPE_CHECKING:
    import asyncio
    import ssl

    from actors.transports.handshakes import Handshakes


@dataclass(frozen=True, slots=True)
class StackOptions:
    """What is spoken on a listener, from the outside in; None: not this."""

    proxy: tuple[Network, ...] | None = None
    """Networks of the proxies that tell their clients' addresses."""
    tls_context: ssl.SSLContext | None = None
    handshakes: Handshakes | None = None
    """Threads for TLS; needed with ``tls_context``."""
    tls_timeout: float | None = None
    """Seconds for a TLS handshake; None: as long as what is above waits for a CONNECT."""
    websocket: WebSocketOptions | None = None
    websocket_stats: WebSocketStats = field(default_factory=WebSocketStats)
    max_frame: int = 384 * 1024
    """Bytes of a WebSocket frame until ``WebSocketStage.max_size`` is set: the longest CONNECT has
    five fields of 64 KiB."""


def build_stack(upper: asyncio.Protocol, options: StackOptions) -> asyncio.Protocol:
    """Give the protocol for a new socket: the stages of a listener, with ``upper`` on top."""
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
