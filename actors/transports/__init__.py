"""The stages between a socket and a connection: PROXY protocol, TLS and WebSocket."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.transports.acceptor import (
        Acceptor,
        SocketAcceptor,
        listening_socket,
        start_acceptors,
    )
    from actors.transports.certificate import IdentityKind, identity
    from actors.transports.handshakes import HandshakeError, Handshakes, TlsStats
    from actors.transports.peer import Network, Peer, local_peer
    from actors.transports.proxy_protocol import BadHeader, encode_header, read_header, read_values
    from actors.transports.stack import StackOptions, build_stack
    from actors.transports.stage import Stage
    from actors.transports.tls_context import TlsConfigError, TlsOptions, make_context
    from actors.transports.websocket import WebSocketOptions, WebSocketStage, WebSocketStats
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "acceptor": "Acceptor SocketAcceptor listening_socket start_acceptors",
            "certificate": "IdentityKind identity",
            "handshakes": "HandshakeError Handshakes TlsStats",
            "peer": "Network Peer local_peer",
            "proxy_protocol": "BadHeader encode_header read_header read_values",
            "stack": "StackOptions build_stack",
            "stage": "Stage",
            "tls_context": "TlsConfigError TlsOptions make_context",
            "websocket": "WebSocketOptions WebSocketStage WebSocketStats",
        },
    )

__all__ = [
    "Acceptor",
    "BadHeader",
    "HandshakeError",
    "Handshakes",
    "IdentityKind",
    "Network",
    "Peer",
    "SocketAcceptor",
    "StackOptions",
    "Stage",
    "TlsConfigError",
    "TlsOptions",
    "TlsStats",
    "WebSocketOptions",
    "WebSocketStage",
    "WebSocketStats",
    "build_stack",
    "encode_header",
    "identity",
    "listening_socket",
    "local_peer",
    "make_context",
    "read_header",
    "read_values",
    "start_acceptors",
]
