"""The base of the connection actor: writes to its socket, pauses and closes it."""

from __future__ import annotations

import asyncio
import math
import select
import sys
from collections import deque
from typing import TYPE_CHECKING, Any, cast

from actors.kernel.actor import LoopActor
from actors.node.backpressure import SlowReaderBackpressure
from actors.session.session_messages import Close, Writable
from actors.transports.peer import local_peer
from actors.transports.stage import Stage

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from actors.connection.keep_alive import KeepAlive
    from actors.kernel.clock import Timers
    from actors.session.interfaces import ClientConnection
    from actors.session.node_context import NodeContext
    from actors.session.session import Session
    from eventstore.log.pending_record import GatedOutput

_LINGER = 5.0
"""Seconds for which a closing connection may still send output."""
_HANG_UP: int = getattr(select, "POLLRDHUP", 0)
"""0: the system does not support it, for example macOS."""
_CLOSED_AT_ONCE = 64
"""Maximum number of sockets closed in one iteration of the event loop."""
_LINGERING, _DISCARDED = 256, 4 * 1024 * 1024
"""Maximum number of sockets of which only the sending side is closed, and of bytes that are read
from each of them and discarded."""
_READ_ON = 1.0
"""Seconds for which such a socket is read."""


class _CloseWhenWritten:
    """Closes a connection once all output before it at the gate was written."""

    __slots__ = ("_connection", "gated", "waits_for")

    def __init__(self, connection: SocketActor) -> None:
        self._connection = connection
        self.waits_for: GatedOutput | None = None
        self.gated = 0

    def write(self, _data: bytes) -> None:
        """Close."""
        self._connection.finish()


def _is_hung_up(transport: asyncio.Transport | None) -> bool:
    """Return whether the client has closed its side of the socket, if the system reports it."""
    found = transport.get_extra_info("socket") if transport is not None else None
    if found is None or not _HANG_UP:
        return False
    number = found.fileno()
    if number < 0:  # already closed
        return True
    poller = select.poll()
    poller.register(number, _HANG_UP)
    return bool(poller.poll(0))


class _Lingering:
    """Takes over a transport, closes its sending side, and discards what arrives for a second.

    For the protocol before, the connection has ended.
    """

    def __init__(self, transport: asyncio.Transport, among: set[_Lingering]) -> None:
        loop = asyncio.get_running_loop()
        self._transport = transport
        self._among = among
        self._left = _DISCARDED
        loop.call_soon(transport.get_protocol().connection_lost, None)
        transport.set_protocol(cast("asyncio.Protocol", self))
        among.add(self)
        self._timer = loop.call_later(_READ_ON, self._end)
        try:
            transport.write_eof()
        except OSError:  # the client has reset the connection
            transport.abort()
            return
        if not transport.is_reading():
            transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Discard input, up to a limit."""
        self._left -= len(data)
        if self._left < 0:
            self._transport.abort()

    def eof_received(self) -> bool:
        """Return False: the event loop closes the socket."""
        return False

    def pause_writing(self) -> None:
        """Do nothing: nothing more is written."""

    def resume_writing(self) -> None:
        """Do nothing: nothing more is written."""

    def connection_lost(self, _exc: Exception | None) -> None:
        """Forget the socket."""
        self._timer.cancel()
        self._among.discard(self)

    def _end(self) -> None:
        if self._transport.get_write_buffer_size():
            self._timer = asyncio.get_running_loop().call_later(_LINGER, self._transport.abort)
        self._transport.close()


class SocketCloser:
    """Closes sockets whose clients have left, some in each iteration of the event loop.

    Closing a socket costs more than the rest of the work at the end of a connection, and the event
    loop itself would close all in one iteration, however many clients leave at the same time.
    """

    __slots__ = ("_lingering", "_waiting")

    def __init__(self) -> None:
        self._waiting: deque[asyncio.Transport] = deque()
        self._lingering: set[_Lingering] = set()

    def part(self, transport: asyncio.Transport) -> None:
        """Close a transport whose client is to read the reason, also while it sends.

        If the socket were closed with unread input, the system would reset the connection, and the
        reason might be lost.
        """
        if isinstance(transport, Stage):
            transport.part(self._half_close)
        else:
            self._half_close(transport)

    def _half_close(self, transport: asyncio.Transport) -> None:
        many = len(self._lingering) >= _LINGERING
        if many or transport.is_closing() or transport.get_extra_info("socket") is None:
            transport.close()
        else:
            _Lingering(transport, self._lingering)

    def close_soon(self, transport: asyncio.Transport) -> None:
        """Close a transport in this iteration or a later one."""
        if not self._waiting:
            asyncio.get_running_loop().call_soon(self._close_some)
        self._waiting.append(transport)

    def _close_some(self) -> None:
        for _ in range(min(_CLOSED_AT_ONCE, len(self._waiting))):
            self._waiting.popleft().close()
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._close_some)


class SocketActor(LoopActor):
    """An actor with a transport, and the asyncio protocol of that transport."""

    __slots__ = (
        "_alive",
        "_closed",
        "_ended",
        "_gone",
        "_last_packet",
        "_node",
        "_parting",
        "_paused",
        "_slow_reader",
        "_transport",
        "address",
        "bytes_out",
        "client_id",
        "gated",
        "host",
        "released",
        "session",
        "starved",
        "waited_before",
        "waits_for",
        "writable",
    )

    def __init__(self, node: NodeContext) -> None:
        super().__init__()
        self._node = node
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._ended = False
        self._gone = False
        """Whether the transport is closed; the actor may not have handled that yet."""
        self._last_packet = b""
        """The DISCONNECT for an MQTT 5 client, sent before the connection is closed."""
        self._parting = False
        """Whether the client is told why the connection ends."""
        self._alive: KeepAlive | None = None
        """None without a keep alive."""
        self._paused = 0
        self.address = ""
        self.host = ""
        """Host of the client, without the port; empty if it is not known yet, or there is none."""
        self.waits_for: GatedOutput | None = None
        self.gated = 0
        self._slow_reader: SlowReaderBackpressure | None = None
        """Publishers that wait until this client reads; None: there are none."""
        self.bytes_out = 0
        self.client_id: str | None = None
        self.starved = False
        """Whether messages were queued because too many bytes waited at the gate."""
        self.released = -math.inf
        """Time at which records were on disk before the last output for the client."""
        self.session: Session | None = None
        self.waited_before = 0.0
        """Seconds for which the client waited before this process got its socket."""
        self.writable = True

    def _set_peer(self) -> None:
        transport = self._transport
        if transport is None:
            return
        peer = transport.get_extra_info("peername")
        if isinstance(peer, tuple):
            self.address = f"{peer[0]}:{peer[1]}"
            self.host = "" if transport.get_extra_info("peer_pending") else sys.intern(peer[0])
        else:
            self.address = local_peer(transport)

    @property
    def client(self) -> str | None:
        """The client identifier, once it is known."""
        return self.client_id

    @property
    def now(self) -> float:
        """Seconds of the broker's clock."""
        return self._node.clock.monotonic()

    @property
    def timers(self) -> Timers:
        """Timers of the broker."""
        return self._node.timers

    @property
    def peer_certificate(self) -> Mapping[str, Any] | None:
        """The client's certificate in the format of ``ssl``."""
        transport = self._transport
        return transport.get_extra_info("peercert") if transport is not None else None

    @property
    def via(self) -> str:
        """Name of the node that the client is connected to; empty: this one."""
        transport = self._transport
        return str(transport.get_extra_info("via") or "") if transport is not None else ""

    @property
    def tls(self) -> str | None:
        """Version of TLS and cipher; None: the connection is not encrypted."""
        cipher = self._transport.get_extra_info("cipher") if self._transport is not None else None
        return f"{cipher[1]} {cipher[0]}" if cipher else None

    @property
    def unsent(self) -> int:
        """Bytes in transit to the client: at the gate, or not read by the client yet."""
        transport = self._transport
        return self.gated + (transport.get_write_buffer_size() if transport is not None else 0)

    @property
    def kept_waiting(self) -> float:
        """Seconds for which the client waited for the broker in a handshake below."""
        found = self._transport.get_extra_info("kept_waiting", 0.0) if self._transport else 0.0
        return cast("float", found)

    @property
    def waited(self) -> float:
        """Seconds for which the client was connected to the node or process that passes it on."""
        found = self._transport.get_extra_info("waited", 0.0) if self._transport else 0.0
        return max(self.waited_before, cast("float", found))

    @property
    def paused(self) -> int:
        """The reasons why reading is paused; 0: it is not."""
        return self._paused

    @property
    def ended(self) -> bool:
        """True once the connection is closed or being closed."""
        return self._ended

    @property
    def gone(self) -> bool:
        """True once the client has closed its socket, also while nothing is read from it."""
        return self._gone or self._ended or _is_hung_up(self._transport)

    @property
    def unread(self) -> int:
        """Bytes that the client has not read from its transport."""
        transport = self._transport
        return transport.get_write_buffer_size() if transport is not None else 0

    def count_fault(self, reason: str) -> None:
        """Count the closing of this connection by reason, and a fault of the client's address."""
        limits, now = self._node.limits, self.now
        limits.refused.add(reason, now, client=self.client_id)
        limits.count_fault(self.host, now)

    def close_after_eof(self, closer: SocketCloser) -> bool:
        """Close the socket soon: the client has left. Return whether ``closer`` does that."""
        transport = self._transport
        while isinstance(transport, Stage):
            transport = transport.lower
        if transport is None or transport.is_closing():
            return False
        closer.close_soon(transport)
        return True

    def finish(self) -> None:
        """Close the transport: nothing more will be written."""
        if self._closed or self._transport is None:
            return
        self._closed = True
        self._transport.close()

    def close_when_written(self) -> None:
        """Close the transport after the output handed to the gate so far."""
        if not self._closed and not self.stopped:
            if self._last_packet:
                farewell, self._last_packet = self._last_packet, b""
                self._parting = True
                self._node.journal.send_when_durable(self, farewell)
                self._node.counters.packets_out += 1
            self._node.journal.send_when_durable(_CloseWhenWritten(self), b"close")
            self.kernel.wake()

    def _linger(self, session: Session | None) -> None:
        self.start_timer(self.timers, _LINGER, self._close_now)
        if session is None:
            self.close_when_written()

    def _close_now(self) -> None:
        """End a close that takes too long: the client does not read, or the log is blocked."""
        if self._transport is not None and not self.stopped:
            self._closed = True
            self._transport.abort()

    def pause(self, reason: int) -> None:
        """Stop reading until every reason for the pause is removed."""
        transport = self._transport
        if not self._paused and transport is not None and not transport.is_closing():
            transport.pause_reading()
        if not self._paused and self._alive is not None:
            self._alive.pause()
        self._paused |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason for the pause; resume reading if it was the last one."""
        if not self._paused & reason:
            return
        self._paused &= ~reason
        transport = self._transport
        if not self._paused and transport is not None and not transport.is_closing():
            transport.resume_reading()
        if not self._paused and self._alive is not None:
            self._alive.resume()

    # Output.

    def pause_writing(self) -> None:
        """Record that the buffer of the transport is full: the client reads too slowly."""
        self.writable = False

    def resume_writing(self) -> None:
        """Tell the session and waiting publishers that there is room again."""
        self.writable = True
        self._release_publishers()
        self._tell_session(Writable(cast("ClientConnection", self)))

    def write(self, data: bytes) -> None:
        """Send bytes; the gate calls this when the events that they depend on are on disk."""
        transport = self._transport
        if transport is not None and not self._closed and not transport.is_closing():
            self.bytes_out += len(data)
            self._node.counters.bytes_out += len(data)
            self.released = self._node.journal.released_at
            transport.write(data)
            if self.observer is not None or self.starved:
                self._written((data,))

    def _written(self, pieces: Sequence[bytes]) -> None:
        if self.observer is not None:
            self.observer.wrote(self, b"".join(pieces))
        if self.starved and not self.gated:
            self.starved = False
            self._tell_session(Writable(cast("ClientConnection", self)))

    def writelines(self, pieces: Sequence[bytes]) -> None:
        """Send large output in pieces, without joining them."""
        transport = self._transport
        if transport is not None and not self._closed and not transport.is_closing():
            size = sum(map(len, pieces))
            self.bytes_out += size
            self._node.counters.bytes_out += size
            transport.writelines(pieces)
            self._written(pieces)

    def throttle_publisher(self, publisher: ClientConnection, count: int) -> None:
        """Pause a publisher until this client, which reads too slowly, has caught up."""
        if publisher is not self:  # type: ignore[comparison-overlap]  # its class is a subclass
            if self._slow_reader is None:
                self._slow_reader = SlowReaderBackpressure()
            self._slow_reader.hold(publisher, count, self.timers)

    def _release_publishers(self) -> None:
        throttle_publisher, self._slow_reader = self._slow_reader, None
        if throttle_publisher is not None:
            throttle_publisher.release()

    def _tell_session(self, message: Any) -> None:
        session = self.session
        if session is not None:
            self._node.tell_session(session, message)

    def close_soon(self, reason: str) -> None:
        """Close the connection after the messages already in its mailbox."""
        self.kernel.tell(self, Close(reason))
