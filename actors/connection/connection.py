"""The connection actor: one for each socket; the client of a session, or of a login.

It identifies the client (:class:`~actors.connection.connect_handshake.ConnectHandshake`), passes
its packets to its session, and ends when either side closes it; it knows no rule of a session. Its
base classes read (:class:`~actors.connection.input_actor.InputActor`) and write
(:class:`~actors.connection.core.ConnectionCore`). It is also the asyncio protocol of its
transport; calls of the transport become messages to the actor, so that failures in them are
supervised like any other.
"""

from __future__ import annotations

import os
import socket
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

from actors.access.rules import TopicAcl
from actors.connection.admission import Admission
from actors.connection.connect_handshake import ConnectHandshake
from actors.connection.input_actor import InputActor
from actors.connection.input_throttle import InputThrottle, count_messages
from actors.connection.keep_alive import KeepAlive
from actors.connection.listener import Listener
from actors.connection.reauthentication import Reauthentication
from actors.connection.receive_window import ReceiveWindow
from actors.node.read_pause import ReadPause
from actors.session.decisions.acknowledgements import PACKET_IDS
from actors.session.node_context import NodeContext
from actors.session.session import Session
from actors.session.session_messages import (
    Authenticated,
    AuthenticationStep,
    Close,
    ConnectionDetached,
    Packets,
)
from actors.transports.handshakes import HandshakeError
from actors.transports.websocket import WebSocketStage
from protocol.mqtt.connect_decoder import MQTT_5
from protocol.mqtt.encoder import PINGRESP, encode_connack
from protocol.mqtt.packets import Auth, Disconnect, Packet, Pingreq, Publishes
from protocol.mqtt.protocol_error import ProtocolError

if TYPE_CHECKING:
    import asyncio


_WRITE_HIGH = 1024 * 1024
"""Bytes in the transport's buffer above which nothing new is sent to the client."""
_FRAME_ROOM = 1024 * 1024
"""Bytes of a WebSocket frame beyond the largest packet: a frame may contain several packets."""
_PING = object()
"""Tells the connection to answer a PINGREQ."""


class Connection(InputActor):
    """The connection of a client."""

    __slots__ = (
        "_admission",
        "_reauthentication",
        "access",
        "deep_filter",
        "id_assigned",
        "keep_alive",
        "max_packet",
        "receive_window",
    )

    def __init__(self, node: NodeContext, admission: Admission, listener: Listener) -> None:
        super().__init__(node, listener, admission.closer)
        self._admission = admission
        self._reauthentication: Reauthentication | None = None
        """None for clients whose CONNECT had no Authentication Method."""
        self.access: TopicAcl | None = None
        """Permissions to publish and subscribe; None: unrestricted."""
        self.deep_filter: str | None = None
        """The one filter that may have more wildcards than usual."""
        self.id_assigned = False
        """Whether the broker assigned the client identifier."""
        self.keep_alive = 0
        """Requested by the client, in seconds."""
        self.max_packet = listener.options.max_packet_size
        """Maximum size in bytes of packets from the client."""
        self.receive_window: ReceiveWindow | None = None
        """Counts unacknowledged publications of the client; None: they are not limited."""
        self._throttle = InputThrottle(self)
        self._handshake = ConnectHandshake(node, self, admission)

    # Calls of the transport; ``InputActor`` has those about input.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the transport, or close it if there are too many connections."""
        self._transport = cast("asyncio.Transport", transport)
        self._set_peer()
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH)
        if not self._admission.admit(self):
            self.ended = self._closed = True
            self._transport.abort()
            return
        if self._handshake is not None:
            self._handshake.expect_connect()

    def peer_known(self) -> None:
        """Record the client address that a proxy reported."""
        if not self.ended:
            self._set_peer()
            self._admission.locate(self)

    def eof_received(self) -> bool:
        """Close the connection soon; return True: the event loop does not close it now."""
        return self.close_after_eof()

    # Messages of the actor.

    def _on_request(self, message: Any) -> None:
        """Handle a step of the login, or a request to answer a PINGREQ or to close."""
        if message is _PING:
            self._answer_ping()
        elif type(message) is Authenticated:
            if self._handshake is not None:
                self._handshake.decided(message.connect, message.verdict)
        elif type(message) is AuthenticationStep:
            message.login.decided(message)
        elif type(message) is Close:
            self.close(message.reason)

    def _disconnected(self, error: Exception | None) -> None:
        """End what the transport has lost."""
        if not self.ended:
            self._count_refused(error)
        self._end("closed" if error is None else "error")
        self.stop()

    def on_failure(self, *_exc_info: object) -> None:
        """Close the socket of a connection that failed."""
        self._end("failed")
        self._closed = True
        if self._transport is not None:
            self._transport.abort()
        self._release_publishers()
        self._alive = None
        self._handshake = None
        self._reauthentication = None
        self._throttle = None
        self._admission.forget(self)

    def on_stop(self) -> None:
        """Remove the connection from all counts, and break its reference cycles."""
        self._admission.forget(self)
        self._release_publishers()
        self._transport = None
        self._alive = None
        self._handshake = None
        self._reauthentication = None
        self._throttle = None
        self.session = None

    @property
    def authentication_data(self) -> bytes | None:
        """Authentication Data of the login's method for the CONNACK."""
        return self._handshake.server_final if self._handshake is not None else None

    def attached(self, session: Session, keep_alive: int) -> None:
        """Begin to pass packets to a session, which has accepted the CONNECT."""
        self.session = session
        self.connected_ms = self._node.clock.time_ms()
        self._begin_new()
        if self._handshake is not None:
            self._handshake.cancel_deadline()
        self.keep_alive = keep_alive
        if keep_alive and self._transport is not None:
            rate = self._node.options.bounds.min_packet_rate
            self._alive = KeepAlive(self, self._transport, keep_alive, rate)
        if isinstance(self._transport, WebSocketStage):
            # Until now frames were limited to the size of a CONNECT.
            self._transport.max_size = self.listener.options.max_packet_size + _FRAME_ROOM
        maximum = self._node.options.receive_maximum
        if self.properties is not None and maximum < PACKET_IDS:
            self.receive_window = ReceiveWindow(maximum)
        self._feed_early()

    def _feed_early(self) -> None:
        """Take input buffered after the CONNECT during the login."""
        if self.properties is not None and self.properties.authentication_method is not None:
            if self._handshake is not None:
                self._handshake.feed_kept(is_decided=True)
                self._handshake.give_up()
            self._reauthentication = Reauthentication(self._node, self, self._admission)
        handshake, self._handshake = self._handshake, None
        throttle = self._throttle
        self.resume(ReadPause.CONNECT)
        if handshake is None or throttle is None:
            return
        early, unread_bytes = handshake.early()
        throttle.prepend(unread_bytes)
        throttle.apply_debt()
        for packets in early:
            self._pass_on(packets)
            throttle.count(count_messages(packets), 0)
        if throttle.waiting:
            throttle.continue_later()
        else:
            if throttle.idle:
                self._throttle = None
            self._close_after_violation()

    def leave_socket(self) -> socket.socket | None:
        """Close the connection if its client has sent nothing; return a duplicate of the socket.

        The client notices nothing: another process may continue.
        """
        handshake, transport = self._handshake, self._transport
        if handshake is None or not handshake.untouched or self.ended or transport is None:
            return None
        inner: socket.socket | None = transport.get_extra_info("socket")
        if inner is None or self.via:
            return None
        self.pause(ReadPause.DRAIN)
        duplicate = socket.socket(fileno=os.dup(inner.fileno()))
        self.abort("broker_stopped")
        return duplicate

    def _violated(self, error: ProtocolError) -> None:
        """Close after a protocol error, which the decoder found."""
        if self._decoder.level >= MQTT_5:
            self.end_after_violation(str(error), error.reason)
            return
        self._count_violation(str(error))
        if error.connack is not None:
            self._parting = True
            self.write(encode_connack(error.connack))
        self.close("protocol_error")

    def _pass_on(self, packets: list[Packet]) -> None:
        """Pass packets to the session in one message; handle a single PINGREQ and DISCONNECT."""
        self._node.counters.count_received(self, packets)
        reauthentication = self._reauthentication
        if reauthentication is None:
            self._pass_to_session(packets)
            return
        for is_auth, group in groupby(packets, lambda packet: type(packet) is Auth):
            if self.ended:
                return
            if is_auth:
                for packet in group:
                    reauthentication.on_auth(cast("Auth", packet))
            else:
                self._pass_to_session([*group])

    def _pass_to_session(self, packets: list[Packet]) -> None:
        if self.receive_window is not None and self._cut_to_window(packets, self.receive_window):
            if packets:
                self._tell_session(Packets(self, packets))
            self.count_fault("receive_maximum")
            self.close("receive_maximum")
            return
        leaves: Disconnect | None = None
        if type(packets[-1]) is Disconnect:
            leaves = packets.pop()  # type: ignore[assignment]  # it is one
        if len(packets) == 1 and type(packets[0]) is Pingreq:
            if self.session is not None and self.session.occupied:
                self._tell_session(Packets(self, packets))
            elif self.session is not None and self.session.mailbox_depth:
                # Preceding packets are not handled yet.
                self.kernel.reschedule(self, _PING)
            else:
                self._answer_ping()
        elif packets:
            self._tell_session(Packets(self, packets))
        if leaves is not None:
            self.leave(leaves)

    def _cut_to_window(self, packets: list[Packet], window: ReceiveWindow) -> bool:
        """Return whether a client exceeded its receive window; keep only the packets within it."""
        for at, packet in enumerate(packets):
            if type(packet) is Publishes and packet.qos:
                fitting = window.add(packet, self._node.journal)
                if fitting < len(packet):
                    packets[at:] = [packet.select(range(fitting))] if fitting else []
                    return True
        return False

    def _answer_ping(self) -> None:
        """Answer a PINGREQ when all preceding packets have been handled.

        The answer does not wait for the disk: a client sees that the broker is running even if the
        log is blocked.
        """
        self._node.journal.send_unlogged(self, PINGRESP)
        self._node.counters.packets_out += 1

    def _count_refused(self, error: Exception | None) -> None:
        """Count a failure of a stage below."""
        reason = {HandshakeError: "tls_handshake", ConnectionError: "framing"}.get(type(error))
        if reason is not None:
            now = self.now
            self._node.limits.refused.add(reason, now, address=self.address, error=str(error))
            if not (isinstance(error, HandshakeError) and error.kind in {"busy", "closed"}):
                self._node.limits.count_fault(self.host, now)

    def _end(
        self, reason: str, *, orderly: bool = False, code: int = 0, expiry: int | None = None
    ) -> None:
        """Tell the session, once, that the connection has ended."""
        if self.ended:
            return
        self.ended = True
        if self._throttle is not None:
            self._throttle.clear()
        if self.observer is not None:
            self.observer.closes(self, reason)
        if self._handshake is not None:
            self._handshake.give_up()
        if self._reauthentication is not None:
            self._reauthentication.give_up()
        if self.session is not None:
            self._tell_session(ConnectionDetached(self, reason, orderly, code, expiry))
