"""One client of an edge, and the connection to the leader that serves it."""

from __future__ import annotations

import asyncio
from enum import Enum
from typing import TYPE_CHECKING, Final, cast

from actors.connection.listener import ListenerOptions
from actors.transports.handshakes import HandshakeError
from actors.transports.peer import identity, local_peer
from actors.transports.websocket import WebSocketStage
from cluster.client_header import (
    MAGIC,
    NONCE_SIZE,
    BadClientHeader,
    ForwardedClient,
    PeerAnswer,
    encode_client,
)
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.remaining_length import read_length

if TYPE_CHECKING:
    from cluster.edge_listeners import Edges

_CONNACK: Final = 0x20


class ConnackWatch:
    """Follows the packets before CONNACK, which are AUTH packets only."""

    __slots__ = ("_head", "_skip")

    def __init__(self) -> None:
        self._head = b""
        self._skip = 0

    def sees(self, data: bytes) -> bool | None:
        """Return whether the client was accepted; None: not known yet."""
        data = self._head + data
        self._head = b""
        while True:
            if self._skip >= len(data):
                self._skip -= len(data)
                return None
            data, self._skip = data[self._skip :], 0
            try:
                framed = read_length(data, 1)
            except ProtocolError:
                return False
            if framed is None:
                self._head = data
                return None
            size, at = framed
            if data[0] == _CONNACK:
                if len(data) < at + 2:
                    self._head = data
                    return None
                return data[at + 1] == 0
            self._skip = at + size


_WRITE_HIGH: Final = 256 * 1024
"""Bytes waiting for one side above which the other side is not read."""
MAX_PARKED: Final = 64 * 1024
"""Bytes of a client that waits for a leader, above which it is not read; its identifier has to be
among them where there are several logs."""
_MAX_LEFT: Final = 32 * 1024
"""Bytes of a client with which its socket can be left to another process."""
_FRAME_ROOM: Final = 1024 * 1024
"""Bytes of a WebSocket frame beyond the largest packet, as in ``actors.connection``."""


class _Side(asyncio.Protocol):
    """One of the two connections of a client; nothing is done to one that is closing."""

    __slots__ = ("transport",)

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None

    def write(self, data: bytes) -> None:
        """Send bytes."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def pause_reading(self) -> None:
        """Stop reading: the other side takes no more bytes now."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        """Read again."""
        if self.transport is not None and not self.transport.is_closing():
            self.transport.resume_reading()

    def abort(self) -> None:
        """Close the connection at once."""
        if self.transport is not None:
            self.transport.abort()


class ClientStage(Enum):
    """The progress of a client."""

    SILENT = "silent"
    """It has sent nothing yet, or too little to find its log."""
    PARKED = "parked"
    """It waits for a connection to the leader."""
    OPENING = "opening"
    """That connection is being opened."""
    OPEN = "open"
    ENDED = "ended"


class EdgeClient(_Side):
    """A client; the top of the stages of its listener."""

    __slots__ = (
        "_below",
        "_deferred",
        "_early",
        "_edge",
        "_held",
        "_options",
        "_seen",
        "_upstream",
        "_watch",
        "address",
        "began",
        "bytes_out",
        "host",
        "log",
        "stage",
    )

    def __init__(self, edge: Edges, options: ListenerOptions, now: float) -> None:
        super().__init__()
        self._edge = edge
        self._options = options
        self._below = 0
        """Bytes read by the stages below."""
        self._seen = 0
        """Bytes received from them."""
        self._early: list[bytes] = []
        """What the client has sent before the leader answered it; empty: it cannot be passed on
        again."""
        self._deferred = False
        """Whether the leader hands over and leaves the client to the next one."""
        self._held = False
        """Whether the client is not read because it sent much before it has a connection."""
        self._upstream: Upstream | None = None
        self._watch: ConnackWatch | None = ConnackWatch()
        """None once the CONNECT is answered."""
        self.bytes_out = 0
        """Bytes written to the client's transport so far."""
        self.began = now
        """When the client connected, in monotonic seconds."""
        self.address = ""
        self.host = ""
        """Host of the client; empty if it is not known yet, or there is none."""
        self.log = 0
        """The number of the log that has its session, once it is known."""
        self.stage = ClientStage.SILENT

    @property
    def listener(self) -> str:
        """The name of its listener."""
        return self._options.name

    @property
    def held_bytes(self) -> int:
        """Bytes that the client has sent before its CONNECT was accepted."""
        return max(self._below, self._seen)

    @property
    def connect_timeout(self) -> float:
        """Seconds for which the client may wait for a connection to the leader."""
        return self._options.connect_timeout

    @property
    def kept_waiting(self) -> float:
        """Seconds of a handshake below for which the client waited for this node."""
        if self.transport is None:
            return 0.0
        kept: float = self.transport.get_extra_info("kept_waiting", 0.0)
        return min(kept, self.connect_timeout)

    # The client's socket.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport; close it if there are too many clients."""
        self.transport = cast("asyncio.Transport", transport)
        self._set_peer()
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)
        if not self._edge.admit(self):
            self.stage = ClientStage.ENDED
            self.transport.abort()

    def peer_known(self) -> None:
        """Record the client address that a proxy reported."""
        if self.stage is not ClientStage.ENDED:
            self._set_peer()
            self._edge.locate(self)

    def _set_peer(self) -> None:
        transport = self.transport
        if transport is None:
            return
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = f"{peer[0]}:{peer[1]}"
            self.host = "" if transport.get_extra_info("peer_pending") else peer[0]
        else:
            self.address = local_peer(transport)

    def read_below(self, size: int) -> bool:
        """Count bytes read by a stage below; return whether that is still needed."""
        if self._watch is None or self.stage is ClientStage.ENDED:
            return False
        self._below += size
        self._edge.hold(self)
        return True

    def data_received(self, data: bytes) -> None:
        """Pass bytes on to the leader; until there is a connection, keep them."""
        if self._watch is not None:
            self._seen += len(data)
            self._edge.hold(self)
        if self.stage is ClientStage.OPEN and self._upstream is not None:
            if self._early:
                self._early.append(data)
                if self._seen > MAX_PARKED:
                    self._early.clear()
            self._upstream.write(data)
        elif self.stage is not ClientStage.ENDED:
            self._early.append(data)
            if not self._held and sum(map(len, self._early)) > MAX_PARKED:
                self._held = True
                self.pause_reading()
            if self.stage is ClientStage.SILENT:
                self._early = [b"".join(self._early)]
                if self._edge.place(self, self._early[0]):
                    self._edge.park(self)

    @property
    def first_bytes(self) -> bytes | None:
        """What the client has sent; None if only its bytes can be passed on, not its socket."""
        stack = self._options.stack
        staged = stack.proxy is not None or stack.tls_context is not None
        if staged or stack.websocket is not None or self._seen > _MAX_LEFT:
            return None
        return b"".join(self._early)

    def leave(self) -> None:
        """Close this process's copy of the socket: another process continues."""
        self.stage = ClientStage.ENDED
        self.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the connection to the leader behind the bytes of the client."""
        self.stage = ClientStage.ENDED
        self._early.clear()
        upstream, self._upstream = self._upstream, None
        if upstream is not None:
            upstream.close()
        failed = exc if isinstance(exc, HandshakeError) or type(exc) is ConnectionError else None
        self._edge.ended(self, failed)

    def pause_writing(self) -> None:
        """Stop reading from the leader: the client reads too slowly."""
        if self._upstream is not None:
            self._upstream.pause_reading()

    def resume_writing(self) -> None:
        """Read from the leader again."""
        if self._upstream is not None:
            self._upstream.resume_reading()

    # The connection to the leader.

    def header(self, nonce: bytes) -> bytes:
        """Return the header that describes the client; raises BadClientHeader."""
        options, transport = self._options, self.transport
        assert transport is not None  # noqa: S101 - it has sent something
        peer = transport.get_extra_info("peername")
        cipher = transport.get_extra_info("cipher")
        certified = None
        if options.identity is not None:
            certified = identity(transport.get_extra_info("peercert"), options.identity)
        client = ForwardedClient(
            (peer[0], peer[1]) if isinstance(peer, tuple) else None,
            self._edge.node,
            options.name,
            local_peer="" if isinstance(peer, tuple) else self.address,
            certified=certified,
            anonymous=options.allow_anonymous,
            version=cipher[1] if cipher else "",
            cipher=cipher[0] if cipher else "",
            max_packet_size=options.max_packet_size,
            connect_timeout=options.connect_timeout,
            publish_rate=options.quota.publish_rate,
            publish_bytes=options.quota.publish_bytes,
            waited=self._edge.waited(self),
        )
        return encode_client(client, nonce, self._edge.key)

    def opened(self, upstream: Upstream) -> None:
        """Pass everything on from now on."""
        self._upstream = upstream
        self.stage = ClientStage.OPEN
        for data in self._early:
            upstream.write(data)
        if self._seen > MAX_PARKED:
            self._early.clear()
        if self._held:
            self._held = False
            self.resume_reading()

    def take(self, data: bytes) -> None:
        """Send bytes of the leader to the client."""
        transport = self.transport
        if transport is None or transport.is_closing():
            return
        if self._early and data == PeerAnswer.LATER.value:
            self._deferred = True
            return
        self._early.clear()
        if self._watch is not None:
            accepted = self._watch.sees(data)
            if accepted is not None:
                self._watch = None
            if accepted:
                self._edge.accepted(self)
                if isinstance(transport, WebSocketStage):
                    transport.max_size = self._options.max_packet_size + _FRAME_ROOM
        self.bytes_out += len(data)
        transport.write(data)

    @property
    def unread(self) -> int:
        """Bytes that the client's transport still holds."""
        return self.transport.get_write_buffer_size() if self.transport is not None else 0

    @property
    def ended(self) -> bool:
        """True once the client is closed or being closed."""
        closing = self.transport is not None and self.transport.is_closing()
        return self.stage is ClientStage.ENDED or closing

    def upstream_lost(self) -> None:
        """Close the client: the leader, or its process, has closed the connection for it.

        A client that the leader has left to the next one waits for that.
        """
        if self._deferred and self._early and not self.ended:
            self._deferred, self._upstream = False, None
            self._edge.park_again(self)
            return
        if not self.ended:
            self._edge.on_lost(self.log)
        self.close()

    def close(self) -> None:
        """Close the client behind the bytes that it was sent."""
        if self.transport is not None and not self.transport.is_closing():
            self._edge.closing(self, self.transport)


class Upstream(_Side):
    """The connection to the leader for one client.

    ``answered`` gets the leader's reply; LATER if the connection ends before.
    """

    __slots__ = ("_accepted", "_client", "_head", "answered")

    def __init__(self, client: EdgeClient) -> None:
        super().__init__()
        self._client = client
        self._head: bytes | None = b""
        """Bytes before the reply; None behind it."""
        self._accepted = False
        """Whether the leader takes the client's bytes."""
        self.answered: asyncio.Future[PeerAnswer] = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the greeting."""
        self.transport = cast("asyncio.Transport", transport)
        self.transport.set_write_buffer_limits(high=_WRITE_HIGH)

    def data_received(self, data: bytes) -> None:
        """Answer the greeting, take the reply; then pass on bytes to the client."""
        if self._head is None:
            self._client.take(data)
            return
        self._head += data
        size = len(MAGIC) + NONCE_SIZE
        if self.transport is None or self.answered.done() or len(self._head) < size:
            return
        if len(self._head) == size:
            self._send_header(self._head)
            return
        try:
            answer = PeerAnswer(self._head[size : size + 1])
        except ValueError:
            answer = PeerAnswer.LATER
        self._head = None
        if answer is PeerAnswer.ACCEPTED:
            self._accepted = True
            self._client.opened(self)
        self.answered.set_result(answer)

    def _send_header(self, head: bytes) -> None:
        if not head.startswith(MAGIC):
            self.answered.set_result(PeerAnswer.LATER)
            return
        try:
            self.write(self._client.header(head[len(MAGIC) :]))
        except BadClientHeader:
            self.answered.set_result(PeerAnswer.REFUSED)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client, or let it wait for another connection."""
        del exc
        if not self.answered.done():
            self.answered.set_result(PeerAnswer.LATER)
        elif self._accepted:
            self._client.upstream_lost()

    def pause_writing(self) -> None:
        """Stop reading the client: the leader takes no more bytes now."""
        self._client.pause_reading()

    def resume_writing(self) -> None:
        """Read the client again."""
        self._client.resume_reading()

    def close(self) -> None:
        """Close the connection behind the bytes of the client."""
        if self.transport is not None:
            self.transport.close()
