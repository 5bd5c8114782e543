"""The part of a connection that its parts use: its transport, its client, and how it ends.

:class:`actors.connection.connection.Connection` is a core with its parts, such as ``KeepAlive`` and
``ConnectHandshake``. These get the core, and know nothing of each other but what they are given.
"""

from __future__ import annotations

import math
import select
import sys
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, cast

import structlog

from actors.access.credentials import Credentials, Verdict
from actors.connection.socket_closer import LINGER, SocketCloser
from actors.kernel.actor import LoopActor
from actors.kernel.clock import Timers
from actors.limits.publish_rates import RateLimiter
from actors.node.backpressure import SlowReaderBackpressure
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import ClientConnection, Close, Writable
from actors.transports.peer import identity, local_peer
from actors.transports.stage import Stage
from eventstore.log.pending_record import GatedOutput
from protocol.mqtt.encoder import encode_connack
from protocol.mqtt.packets import ConnectCode, ConnectProperties, Disconnect
from protocol.mqtt.reason_codes import (
    ENDINGS,
    FOR_CONNECT_CODES,
    REFUSALS,
    ReasonCode,
    closing_string,
)
from protocol.mqtt.server_packet_encoder_v5 import (
    Explanation,
    encode_connack_v5,
    encode_server_disconnect,
)

if TYPE_CHECKING:
    import asyncio

    from actors.connection.listener import Listener

_log = structlog.get_logger("foldmq")

_HANG_UP: int = getattr(select, "POLLRDHUP", 0)
"""0: the system does not support it, for example macOS."""
_LONGEST_TIMER = 60.0


class _CloseWhenWritten:
    """Closes a connection once all output before it at the gate was written."""

    __slots__ = ("_connection", "gated", "waits_for")

    def __init__(self, connection: ConnectionCore) -> None:
        self._connection = connection
        self.waits_for: GatedOutput | None = None
        self.gated = 0

    def write(self, _data: bytes) -> None:
        """Close."""
        self._connection.finish()


def _is_hung_up(transport: asyncio.Transport | None) -> bool:
    """Return whether the client has closed its side of the socket, if the system reports it."""
    peer = transport.get_extra_info("socket") if transport is not None else None
    if peer is None or not _HANG_UP:
        return False
    number = peer.fileno()
    if number < 0:  # already closed
        return True
    poller = select.poll()
    poller.register(number, _HANG_UP)
    return bool(poller.poll(0))


class ConnectionCore(LoopActor):
    """Transport, client and end of a connection; it reads nothing."""

    __slots__ = (
        "_closed",
        "_closer",
        "_expiry_due",
        "_gone",
        "_jumped_ms",
        "_last_packet",
        "_node",
        "_parting",
        "_slow_reader",
        "_transport",
        "address",
        "bytes_out",
        "caused",
        "client_id",
        "connected_ms",
        "counted_user",
        "ended",
        "gated",
        "given_id",
        "host",
        "identity",
        "listener",
        "messages_in",
        "messages_out",
        "packets_in",
        "paused",
        "properties",
        "released",
        "session",
        "starved",
        "waited_before",
        "waits_for",
        "writable",
    )

    def __init__(self, node: NodeContext, listener: Listener, closer: SocketCloser) -> None:
        super().__init__()
        self._node = node
        self._transport: asyncio.Transport | None = None
        self._closed = False
        self._closer = closer
        self.ended = False
        """True once the connection is closed or being closed."""
        self._expiry_due = 0.0
        """When to check the expiry of the login again, in seconds of the broker's clock."""
        self._jumped_ms = 0
        """Sum of the jumps of the clock since the login."""
        self._gone = False
        """Whether the transport is closed; the actor may not have handled that yet."""
        self._last_packet = b""
        """The DISCONNECT for an MQTT 5 client, sent before the connection is closed."""
        self._parting = False
        """Whether the client is told why the connection ends."""
        self.paused = 0
        """The reasons why reading is paused; 0: it is not."""
        self.address = ""
        self.host = ""
        """Host of the client, without the port; empty if it is not known yet, or there is none."""
        self.waits_for: GatedOutput | None = None
        self.gated = 0
        self._slow_reader: SlowReaderBackpressure | None = None
        """Publishers that wait until this client reads; None: there are none."""
        self.bytes_out = 0
        self.caused = 0
        """Number of deliveries caused by the client's publications."""
        self.client_id: str | None = None
        self.connected_ms = 0
        """When the CONNECT was accepted, Unix time in milliseconds."""
        self.counted_user: str | None = None
        """The user whose connections include this one; None: not counted."""
        self.given_id = ""
        """The client's own client identifier; others see ``client_id``."""
        self.identity: Verdict | None = None
        """The identity of the client, once it is known."""
        self.listener = listener
        self.messages_in = 0
        self.messages_out = 0
        self.packets_in = 0
        self.properties: ConnectProperties | None = None
        """Properties of the CONNECT of an MQTT 5 client; None: the client speaks MQTT 3.1 or
        3.1.1."""
        self.starved = False
        """Whether messages were queued because too many bytes waited at the gate."""
        self.released = -math.inf
        """Time at which records were on disk before the last output for the client."""
        self.session: Session | None = None
        self.waited_before = 0.0
        """Seconds for which the client waited before this process got its socket."""
        self.writable = True

    # What its parts use of the input: implemented by the connection.

    @property
    def authenticating(self) -> bool:
        """True while the client is being authenticated."""
        raise NotImplementedError

    @property
    def decoding(self) -> bool:
        """True while decoded packets are left for another turn."""
        raise NotImplementedError

    @property
    def incomplete(self) -> int:
        """Bytes of an incomplete packet."""
        raise NotImplementedError

    @property
    def settled(self) -> bool:
        """True once the client is no longer new."""
        raise NotImplementedError

    @property
    def unhandled(self) -> bool:
        """Whether some input was read but not handled yet."""
        raise NotImplementedError

    def feed(self, data: bytes) -> None:
        """Decode bytes and handle their packets."""
        raise NotImplementedError

    def feed_more(self) -> None:
        """Process input that was read while the client had to wait for an answer."""
        raise NotImplementedError

    def set_rate_limiter(self, rate_limiter: RateLimiter | None) -> None:
        """Set the rate limiter that counts the client's publications."""
        raise NotImplementedError

    def ignore_input(self) -> None:
        """Ignore further input of the client, whose connection is about to be closed."""
        raise NotImplementedError

    def _end(
        self, reason: str, *, orderly: bool = False, code: int = 0, expiry: int | None = None
    ) -> None:
        """Tell the session, once, that the connection has ended."""
        raise NotImplementedError

    # The transport.

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
        seconds = self._transport.get_extra_info("kept_waiting", 0.0) if self._transport else 0.0
        return cast("float", seconds)

    @property
    def waited(self) -> float:
        """Seconds for which the client was connected to the node or process that passes it on."""
        seconds = self._transport.get_extra_info("waited", 0.0) if self._transport else 0.0
        return max(self.waited_before, cast("float", seconds))

    @property
    def gone(self) -> bool:
        """True once the client has closed its socket, also while nothing is read from it."""
        return self._gone or self.ended or _is_hung_up(self._transport)

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

    def close_after_eof(self) -> bool:
        """Close the socket soon: the client has left. Return whether the closer does that."""
        transport = self._transport
        while isinstance(transport, Stage):
            transport = transport.lower
        if transport is None or transport.is_closing():
            return False
        self._closer.close_soon(transport)
        return True

    def finish(self) -> None:
        """Close the transport: nothing more will be written."""
        if self._closed or self._transport is None:
            return
        self._closed = True
        if self._parting:
            self._closer.part(self._transport)
        else:
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
        self.start_timer(self.timers, LINGER, self._close_now)
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
        if not self.paused and transport is not None and not transport.is_closing():
            transport.pause_reading()
        self.paused |= reason

    def resume(self, reason: int) -> None:
        """Remove a reason for the pause; resume reading if it was the last one."""
        if not self.paused & reason:
            return
        self.paused &= ~reason
        transport = self._transport
        if not self.paused and transport is not None and not transport.is_closing():
            transport.resume_reading()

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

    def refuse(self, code: ConnectCode, reason: str) -> None:
        """Answer the CONNECT with a return code other than 0 and close [MQTT-3.2.2-5]."""
        if self.properties is None:
            self.write(encode_connack(code))
        else:
            limit = self.properties.maximum_packet_size
            about = Explanation(closing_string(reason))
            refused = REFUSALS.get(reason, FOR_CONNECT_CODES[code])
            self.write(encode_connack_v5(refused, about=about, limit=limit))
        self._node.counters.packets_out += 1
        self._parting = True
        self._end(reason)
        self.finish()

    def close(self, reason: str, code: int = 0, about: str = "") -> None:
        """Close the connection once the output waiting at the gate has been written.

        An MQTT 5 client is sent a DISCONNECT with ``code``, or with the reason code that belongs to
        ``reason``, and ``about`` as its reason string. The session, which may still have responses
        to send, determines the moment (:meth:`close_when_written`).
        """
        session = self.session
        if self.properties is not None and self.connected_ms and not self.ended:
            code = code or ENDINGS.get(reason, 0)
            if code:
                limit = self.properties.maximum_packet_size
                why = Explanation(closing_string(reason, about))
                self._last_packet = encode_server_disconnect(code, why, limit=limit)
        self._end(reason, code=code)
        self._linger(session)

    def abort(self, reason: str) -> None:
        """Close at once, without waiting for output at the gate."""
        self._end(reason)
        self._close_now()

    def end_after_violation(self, about: str, code: int = ReasonCode.PROTOCOL_ERROR) -> None:
        """Close after a protocol error of an MQTT 5 client, with its reason code."""
        self._count_violation(about)
        if not self.connected_ms:
            # The maximum packet size is unknown after an invalid CONNECT.
            why, limit = Explanation(), 0
            if self.properties is not None:
                why = Explanation(closing_string("", about))
                limit = self.properties.maximum_packet_size
            self._parting = True
            self.write(encode_connack_v5(code, about=why, limit=limit))
        self.close("protocol_error", code, about)

    def _count_violation(self, about: str) -> None:
        self._count_broken(about)
        self._node.limits.count_fault(self.host, self.now)

    def _count_broken(self, about: str) -> None:
        self._node.limits.broken.add(
            "protocol_error", self.now, client=self.client_id, address=self.address, error=about
        )

    def leave(self, packet: Disconnect) -> None:
        """Handle a DISCONNECT: the will is published unless the reason code is 0."""
        properties, expiry = self.properties, packet.session_expiry
        if properties is not None and expiry and not properties.session_expiry:
            # The session ends with its connection, as the CONNECT requested [MQTT-3.14.2-2].
            about = "DISCONNECT with a session expiry although CONNECT had none"
            self._count_broken(about)
            self.close("protocol_error", ReasonCode.PROTOCOL_ERROR, about)
            return
        session = self.session
        orderly = packet.reason == ReasonCode.SUCCESS
        self._end("disconnect", orderly=orderly, code=packet.reason, expiry=expiry)
        self._linger(session)

    def close_soon(self, reason: str) -> None:
        """Close the connection after the messages already in its mailbox."""
        self.kernel.tell(self, Close(reason))

    # The client.

    def credentials(self, username: str | None, password: bytes | None = None) -> Credentials:
        """Return the known credentials of a client with this user name and password."""
        options, transport = self.listener.options, self._transport
        # Another node passes on the name that it determined.
        certified = transport.get_extra_info("certified") if transport is not None else None
        if certified is None and options.identity is not None:
            certified = identity(self.peer_certificate, options.identity)
        return Credentials(
            username,
            password,
            self.given_id,
            self.host,
            options.name,
            options.allow_anonymous,
            certified,
        )

    def identify(self, verdict: Verdict) -> None:
        """Record the identity of the client after a login or a re-authentication."""
        self.identity = verdict
        self._jumped_ms = 0
        self._expiry_due = 0.0
        self._check_expiry()

    def clock_jumped(self, ms: int) -> None:
        """Shift the times of the connection after a jump of the clock."""
        if self.connected_ms:
            self.connected_ms += ms
        self._jumped_ms += ms

    def _check_expiry(self) -> None:
        """Close the connection if the credentials of the client have expired."""
        if self.ended or self.identity is None or not self.identity.expires_ms:
            return
        if self.now < self._expiry_due:
            return  # this timer was set before a re-authentication
        now_ms = self._node.clock.time_ms() - self._jumped_ms
        remaining_seconds = (self.identity.expires_ms - now_ms) / 1000
        if remaining_seconds <= 0:
            _log.info("login expired", client=self.client_id, address=self.address)
            self.close_soon("login_expired")
            return
        wait = min(remaining_seconds, _LONGEST_TIMER)
        self._expiry_due = self.now + wait
        self.start_timer(self.timers, wait, self._check_expiry)
