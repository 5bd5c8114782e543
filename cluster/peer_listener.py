"""The leader's listener for other nodes, which pass on clients."""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import structlog

from actors.connection.admission import Admission
from actors.connection.connection import Connection
from actors.connection.listener import Listener, ListenerOptions
from actors.limits.limit_options import Quota
from actors.session.node_context import NodeContext
from actors.transports.acceptor import Acceptor
from actors.transports.handshakes import Handshakes
from actors.transports.stack import StackOptions, build_stack
from actors.transports.stage import Stage
from cluster.client_header import (
    MAGIC,
    NONCE_SIZE,
    BadClientHeader,
    ForwardedClient,
    PeerAnswer,
    decode_client,
)

if TYPE_CHECKING:
    import socket
    import ssl


_log = structlog.get_logger("foldmq")

_HEADER_SECONDS: Final = 5.0
"""Seconds in which a node has to send its header, TLS included."""
_WAITING_AT_MOST: Final = 1024
"""Connections without a valid header; beyond it the oldest one is closed."""
_LOG_EVERY: Final = 10.0
"""Seconds between log lines about connections without a valid header."""
_MAX_NAMES: Final = 256
"""Listeners of other nodes of which options are kept."""


class PeerListener:
    """Accepts the connections of other nodes; each one becomes the connection of a client.

    ``key`` is the key of the cluster, empty without. With ``tls_context`` nodes have to present a
    certificate that it accepts.
    """

    def __init__(
        self,
        node: NodeContext,
        admission: Admission,
        key: bytes,
        tls_context: ssl.SSLContext | None = None,
        handshakes: Handshakes | None = None,
    ) -> None:
        self.node = node
        self.admission = admission
        self.key = key
        self._stack = StackOptions(
            tls_context=tls_context, handshakes=handshakes, tls_timeout=_HEADER_SECONDS
        )
        self._listeners: dict[ForwardedClient, Listener] = {}
        self._waiting: dict[PeerStage, None] = {}
        self._logged_at = float("-inf")

    def listen(self, sockets: Sequence[socket.socket]) -> None:
        """Accept connections on bound, listening sockets, until the broker drains."""
        for bound in sockets:
            acceptor = Acceptor(bound, lambda _host: True, self.accept)
            acceptor.start()
            self.admission.acceptors.append(acceptor)

    def accept(self) -> asyncio.BaseProtocol:
        """Return the protocol of a new connection."""
        if len(self._waiting) >= _WAITING_AT_MOST:
            next(iter(self._waiting)).refuse("too many connections without a header")
        stage = PeerStage(self)
        self._waiting[stage] = None
        return build_stack(stage, self._stack)

    def forget(self, stage: PeerStage) -> None:
        """Stop counting a connection that has its header, or is closed."""
        self._waiting.pop(stage, None)

    def refused(self, address: str, reason: str) -> None:
        """Log a connection that has no valid header."""
        now = self.node.clock.monotonic()
        if now - self._logged_at >= _LOG_EVERY:
            self._logged_at = now
            _log.warning(
                "connection to cluster_listen refused: it is not a node of this cluster",
                address=address,
                reason=reason,
            )

    def answer(self, client: ForwardedClient) -> PeerAnswer:
        """Return whether a client may be passed on now."""
        if self.node.draining or self.node.unsure or self.node.failed.done():
            return PeerAnswer.LATER  # see also PeerStage._defer
        host = client.peer[0] if client.peer is not None else ""
        if self.admission.refuses(client.listener, host):
            return PeerAnswer.REFUSED
        return PeerAnswer.ACCEPTED

    @property
    def defers(self) -> bool:
        """Whether clients without an answer are left to the node that leads next."""
        return self.node.handing_over or bool(self.node.unsure)

    def connection(self, client: ForwardedClient) -> Connection:
        """Return the actor of the connection of a client."""
        connection = Connection(self.node, self.admission, self._listener(client))
        self.node.kernel.spawn(connection, self.node.root)
        return connection

    def _listener(self, client: ForwardedClient) -> Listener:
        """Return the listener with the options of the one that the client connected to."""
        key = dataclasses.replace(
            client, peer=None, local_peer="", certified=None, version="", cipher="", waited=0.0
        )
        own_listener = self._listeners.get(key)
        if own_listener is not None:
            return own_listener
        own = self.admission.listeners.get(client.listener)
        largest = self.node.options.max_packet_size
        if client.max_packet_size > 0:
            largest = min(largest, client.max_packet_size)
        quota = Quota(publish_rate=client.publish_rate, publish_bytes=client.publish_bytes)
        options = ListenerOptions(
            client.listener,
            largest,
            client.connect_timeout,
            client.anonymous,
            quota=own.options.quota if own is not None else quota,
        )
        listener = Listener(options, self.node.options.max_topic_aliases)
        if len(self._listeners) >= _MAX_NAMES:
            self._listeners.clear()
        self._listeners[key] = listener
        return listener


_OF_CLIENT: Final = {
    "peername": "peer",
    "via": "node",
    **{name: name for name in ("local_peer", "certified", "waited")},
    **dict.fromkeys(("cipher", "tls_version", "peercert", "ssl_object"), ""),
}
"""Extra info about a client -> the field that has it; empty: none does, or several do."""


class PeerStage(Stage):
    """One connection of another node: the stage below the connection of its client.

    Extra info: ``peername``, ``local_peer``, ``certified``, ``cipher`` and ``tls_version`` of the
    client and the seconds that it has ``waited``, as its node reports them, and ``via``, that node.
    """

    __slots__ = ("_answered", "_client", "_connection", "_head", "_late", "_listener", "_nonce")

    def __init__(self, listener: PeerListener) -> None:
        super().__init__(asyncio.Protocol())
        self._listener = listener
        self._nonce = secrets.token_bytes(NONCE_SIZE)
        self._head = b""
        self._answered = False
        """Whether the client was sent anything."""
        self._client: ForwardedClient | None = None
        self._connection: Connection | None = None
        self._late: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the greeting."""
        super().connection_made(transport)
        self.lower.write(MAGIC + self._nonce)
        loop = asyncio.get_running_loop()
        self._late = loop.call_later(_HEADER_SECONDS, self.refuse, "it sent no header in time")

    def data_received(self, data: bytes) -> None:
        """Read the header, then pass on."""
        if self._client is not None:
            self._upper.data_received(data)
            return
        if self.is_closing():
            return
        self._head += data
        listener = self._listener
        try:
            decoded = decode_client(self._head, self._nonce, listener.key)
        except BadClientHeader as error:
            self.refuse(str(error))
            return
        if decoded is None:
            return
        client, size = decoded
        behind, self._head = self._head[size:], b""
        self._settle()
        answer = listener.answer(client)
        self.lower.write(answer.value)
        if answer is not PeerAnswer.ACCEPTED:
            self.lower.close()
            return
        self._client = client
        self._connection = listener.connection(client)
        self._upper = cast("asyncio.Protocol", self._connection)
        self._upper.connection_made(self)
        if behind and not self.is_closing():
            self._upper.data_received(behind)

    def refuse(self, reason: str) -> None:
        """Close a connection that has no valid header."""
        self._listener.refused(self._from, reason)
        self._settle()
        self.lower.abort()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes to the client."""
        self._answered = True
        super().write(data)

    def close(self) -> None:
        """Close the connection behind the bytes that were sent."""
        self._defer()
        super().close()

    def abort(self) -> None:
        """Close the connection at once."""
        if self._defer():
            super().close()
        else:
            super().abort()

    def _defer(self) -> bool:
        """Leave a client without an answer to the node that leads next; return whether it is.

        Not if its CONNECT was handled: that one may take effect, and its will must not do so twice.
        """
        connection = self._connection
        unhandled = connection is not None and not connection.connected_ms
        defers = unhandled and not self._answered and self._listener.defers
        if defers and not self.is_closing():
            self.write(PeerAnswer.LATER.value)
        return defers

    @property
    def _from(self) -> str:
        """The address of the other node; empty if it is the main process of this one."""
        peer = super().get_extra_info("peername")
        return f"{peer[0]}:{peer[1]}" if isinstance(peer, tuple) else ""

    def _settle(self) -> None:
        self._listener.forget(self)
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on that the connection is lost."""
        self._settle()
        if self._client is None and isinstance(exc, ConnectionError):
            self._listener.refused(self._from, str(exc))
        super().connection_lost(exc)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return what is known of the client; nothing of the node that passes it on."""
        client = self._client
        if name not in _OF_CLIENT:
            return super().get_extra_info(name, default)
        if client is None or name in ("peercert", "ssl_object"):
            return default
        if name == "cipher":
            return (client.cipher, client.version, 0) if client.version else default
        if name == "tls_version":
            return client.version or default
        return getattr(client, _OF_CLIENT[name])
