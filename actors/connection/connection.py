"""The connection actor: one for each socket, decodes input and writes output released by the gate.

It handles framing, the keep alive and backpressure; the rules of MQTT are left to the session. Its
:class:`~actors.connection.connect_handshake.ConnectHandshake` identifies the client; input that may
not be processed yet waits in :class:`~actors.connection.input_throttle.InputThrottle`. It is also
the asyncio protocol of its transport; calls of the transport become messages to the actor, so that
failures in them are supervised like any other.
"""

from __future__ import annotations

import math
from itertools import groupby
from typing import TYPE_CHECKING, Any, cast

import structlog

from actors.authn import Credentials
from actors.connection.connect_handshake import ConnectHandshake
from actors.connection.input_throttle import (
    CONTINUE,
    SLICE_BYTES,
    InputLoad,
    InputThrottle,
    count_messages,
)
from actors.connection.keep_alive import KeepAlive
from actors.connection.reauthentication import Reauthentication
from actors.connection.receive_window import ReceiveWindow
from actors.connection.socket_actor import SocketActor
from actors.kernel import LATER_SLICE, DeferredRead
from actors.node import ReadPause
from actors.session import (
    Authenticated,
    AuthenticationStep,
    Close,
    ConnectionDetached,
    Packets,
)
from actors.session.decisions import PACKET_IDS
from actors.transports import HandshakeError, WebSocketStage, identity
from protocol.mqtt import (
    ENDINGS,
    FOR_CONNECT_CODES,
    MQTT_5,
    PINGRESP,
    REFUSALS,
    Auth,
    ConnectCode,
    ConnectProperties,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Publishes,
    ReasonCode,
    closing_string,
    encode_connack,
)
from protocol.mqtt5 import Explanation, encode_connack_v5, encode_server_disconnect

if TYPE_CHECKING:
    import asyncio

    from actors.authn import Verdict
    from actors.authz import TopicAcl
    from actors.connection.listener import Listener
    from actors.limits import RateLimiter
    from actors.session import NodeContext, Session

_log = structlog.get_logger("foldmq")

_WRITE_HIGH = 1024 * 1024
"""Bytes in the transport's buffer above which nothing new is sent to the client."""
_FRAME_ROOM = 1024 * 1024
"""Bytes of a WebSocket frame beyond the largest packet: a frame may contain several packets."""
_SMALL = 4096
"""Bytes of a new client that may wait without a pause in reading."""
_NEW = 1.0
"""Seconds after the CONNECT for which the client's input has low priority; shorter for a client
that sends a single packet while no other new client waits."""
_LONGEST_TIMER = 60.0
_PACKETS_AT_ONCE = 4096
"""Approximate maximum of packets of a client per turn; one of QoS 1 or 2 counts as eight."""
_LARGE = 2 * 1024
"""Size above which a read is handled after the reads of clients that send less."""
_LEAST_AT_ONCE = 256
"""Lower limit of ``_PACKETS_AT_ONCE`` while light clients are active."""
_PUBLISH, _PUBACK, _SUBSCRIBE = b"\x30", b"\x40", b"\x80"
"""First bytes of PUBLISH, PUBACK and SUBSCRIBE; those of the other acknowledgements are between the
last two."""
_ACKS, _ACK_BYTES = frozenset({b"\x40", b"\x50", b"\x70"}), 4
_UNHURRIED = _ACKS | {b"\xc0"}
"""First bytes of PUBACK, PUBREC, PUBCOMP and PINGREQ. A light client that sends nothing else does
not notice whether others are served in long or short turns: the receivers of a bulk client are no
reason to handle that client's input in small parts."""
_SLOWEST = 1 / 64
"""Minimum fraction of the usual work that a client may cause in one turn."""


class _Lost:
    """The transport lost the connection."""

    __slots__ = ("error", "waited")

    def __init__(self, error: Exception | None) -> None:
        self.error = error
        self.waited = False
        """Whether it waited until the broker had handled the CONNECT."""


_PING = object()
"""Tells the connection to answer a PINGREQ."""
_TAKE_ALL = object()
"""Tells the connection to take all input now."""
_TAKE_MORE = object()
"""Tells the connection to take packets beyond those of the last turn."""


class Connection(SocketActor):
    """The connection of a client."""

    begins_turns = True
    __slots__ = (
        "_decoder",
        "_deferred_reads",
        "_expiry_due",
        "_handshake",
        "_new_until",
        "_read_between",
        "_reauthentication",
        "_throttle",
        "access",
        "bytes_in",
        "caused",
        "client_id",
        "connected_ms",
        "counted_user",
        "deep_filter",
        "given_id",
        "id_assigned",
        "identity",
        "ignores_input",
        "keep_alive",
        "last_read",
        "listener",
        "load",
        "max_packet",
        "messages_in",
        "messages_out",
        "pace",
        "packets_in",
        "properties",
        "receive_window",
    )

    def __init__(self, node: NodeContext, listener: Listener) -> None:
        super().__init__(node)
        self._decoder = Decoder(listener.options.max_packet_size, _PACKETS_AT_ONCE, listener.v5)
        self._deferred_reads = 0
        """Number of reads handled after those of clients that send little."""
        self._throttle: InputThrottle | None = InputThrottle(self)
        """Holds input that is not processed yet; None for a client that is neither new nor
        limited."""
        self._handshake: ConnectHandshake | None = ConnectHandshake(node, self)
        """None once the CONNECT is accepted."""
        self._reauthentication: Reauthentication | None = None
        """None for clients whose CONNECT had no Authentication Method."""
        self._expiry_due = 0.0
        """When to check the expiry of the login again, in seconds of the broker's clock."""
        self._new_until: float | None = math.inf
        """Monotonic time at which the client stops being new; None afterwards."""
        self.access: TopicAcl | None = None
        """Permissions to publish and subscribe; None: unrestricted."""
        self.bytes_in = 0
        self.caused = 0
        """Number of deliveries caused by the client's publications."""
        self.client_id: str | None = None
        self.deep_filter: str | None = None
        """The one filter that may have more wildcards than usual."""
        self.counted_user: str | None = None
        """The user whose connections include this one; None: not counted."""
        self.given_id = ""
        """The client's own client identifier; others see ``client_id``."""
        self.id_assigned = False
        """Whether the broker assigned the client identifier."""
        self.identity: Verdict | None = None
        """The identity of the client, once it is known."""
        self.listener = listener
        self.load: InputLoad | None = None
        """Measures the client's input; None while a new client has published nothing."""
        self.max_packet = listener.options.max_packet_size
        """Maximum size in bytes of packets from the client."""
        self.ignores_input = False
        """Whether the connection is about to be closed, so that unhandled input is ignored."""
        self.connected_ms = 0
        """When the CONNECT was accepted, Unix time in milliseconds."""
        self.keep_alive = 0
        """Requested by the client, in seconds."""
        self.messages_in = 0
        self.messages_out = 0
        self._read_between = -1
        """Number of the turn during whose breaks the last read arrived."""
        self.pace = 1.0
        """Fraction of the usual work that the client may cause in one turn while others wait."""
        self.packets_in = 0
        self.properties: ConnectProperties | None = None
        """Properties of the CONNECT of an MQTT 5 client; None: the client speaks MQTT 3.1 or
        3.1.1."""
        self.receive_window: ReceiveWindow | None = None
        """Counts unacknowledged publications of the client; None: they are not limited."""
        self.last_read = -math.inf
        """Time of the last read after the CONNECT, in seconds of the broker's clock."""

    # Calls of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Accept the transport, or close it if there are too many connections."""
        self._transport = cast("asyncio.Transport", transport)
        self._set_peer()
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH)
        if not self.listener.admission.admit(self):
            self._ended = self._closed = True
            self._transport.abort()
            return
        if self._handshake is not None:
            self._handshake.expect_connect()

    def peer_known(self) -> None:
        """Record the client address that a proxy reported."""
        if not self._ended:
            self._set_peer()
            self.listener.admission.locate(self)

    def data_received(self, data: bytes) -> None:
        """Put received bytes into the mailbox; new clients do not delay others."""
        if self.stopped:
            return
        kernel = self.kernel
        if kernel.between:
            # No client may have more than one large read, or two small ones, in the next turn,
            # however long this turn is.
            if self._read_between == kernel.turns or len(data) > _LARGE:
                self.pause(ReadPause.TURN)
            self._read_between = kernel.turns
        if self._new_until is not None and self._may_settle(data):
            self._new_until = None
            self._drop_throttle()
        if self._new_until is None:
            now = self.kernel.clock()
            if (
                self._deferred_reads
                or len(data) > _LARGE
                or (self._is_heavy(now) and not self._acknowledges(data))
            ):
                # Clients that send little have priority.
                if self._deferred_reads:
                    self.pause(ReadPause.TURN)
                self._deferred_reads += 1
                self.kernel.later(self, DeferredRead(data))
            else:
                if data[:1] not in _UNHURRIED:
                    self.kernel.light_at = now
                if self.pace < 1:
                    self._go_at(min(1.0, self.pace * 1.5))
                self.kernel.gather(self, data)
        else:
            if self._handshake is not None and not self._ended:
                self._handshake.saw(len(data))
            if self.load is None and self.session is not None and _PUBLISH <= data[:1] < _PUBACK:
                self.load = InputLoad(self, self.kernel.clock())
            if self.mailbox_depth or len(data) > _SMALL:
                self.pause(ReadPause.TURN)
            self.kernel.tell_low_priority(self, data, first=self.identity is not None)

    def _is_heavy(self, now: float) -> bool:
        """Return whether others take priority over the client's input."""
        if self.load is None:
            self.load = InputLoad(self, now)
            return False
        return self.load.is_heavy(self, now)

    def _may_settle(self, data: bytes) -> bool:
        """Return whether input of a new client gets normal priority from this read on.

        A single message or acknowledgement need not wait if no other new client waits. A SUBSCRIBE
        always waits: those of many connecting clients share a record.
        """
        if self.settled:
            return True
        usual = _PUBLISH <= data[:1] < _SUBSCRIBE and _is_one_packet(data)
        return usual and self.session is not None and not self.kernel.low_priority_waits

    def _acknowledges(self, data: bytes) -> bool:
        """Return whether a read may consist of expected acknowledgements, by first byte and size.

        Acknowledgements of a busy receiver make room for messages published meanwhile.
        """
        if data[:1] not in _ACKS or self.session is None:
            return False
        state = self.session.state
        return len(data) <= _ACK_BYTES * (len(state.inflight) + len(state.releasing))

    def on_part_done(self, seconds: float) -> None:
        """Adapt the length of further parts of longer work to the duration of the last one."""
        if seconds > LATER_SLICE:
            self._go_at(max(_SLOWEST, self.pace * max(0.25, LATER_SLICE / seconds)))
        elif self.pace < 1 and seconds < LATER_SLICE / 2:
            self._go_at(min(1.0, self.pace * 1.5))

    def _go_at(self, pace: float) -> None:
        self.pace = pace
        self._decoder.at_once = max(_LEAST_AT_ONCE, int(_PACKETS_AT_ONCE * pace))

    def eof_received(self) -> bool:
        """Close the connection soon; return True: the event loop does not close it now."""
        return self.close_after_eof(self.listener.admission.closer)

    def connection_lost(self, exc: Exception | None) -> None:
        """Put the end into the mailbox, after earlier reads."""
        self._gone = True
        if not self.stopped and not self._ended:
            if self._deferred_reads:
                self.kernel.later(self, _Lost(exc))
            elif self._new_until is None:
                self.kernel.tell(self, _Lost(exc))
            else:
                self.kernel.tell_low_priority(self, _Lost(exc))
        elif not self.stopped:
            self.stop()

    # Messages of the actor.

    def on_receive(self, message: Any) -> None:
        """Handle bytes, the end of the connection, or a request to close it."""
        if type(message) is bytes:
            self._on_bytes(message)
            self._resume_turn()
        elif type(message) is DeferredRead:
            self.on_read_resumed()
            self.on_receive(message.data)
        elif message is _TAKE_MORE:
            if self._decoder.more and not self._ended:
                self.take(b"")
            self._resume_turn()
        elif message is CONTINUE:
            if self._throttle is not None:
                self._throttle.continue_()
                self._drop_throttle()
        elif type(message) is _Lost:
            self._lost(message)
        elif message is _TAKE_ALL:
            self._take_what_waits()
        elif message is _PING:
            self._answer_ping()
        elif type(message) is Authenticated:
            if self._handshake is not None:
                self._handshake.decided(message.connect, message.verdict)
        elif type(message) is AuthenticationStep:
            message.login.decided(message)
        elif type(message) is Close:
            self.close(message.reason)

    # Members used by the fast path, which handles many connections in one pass; see
    # ``actors.fast_path``.

    @property
    def plain(self) -> bool:
        """True while the fast path may read the client's input without further checks."""
        return (
            (self._throttle is None or self._throttle.open)
            and self._handshake is None
            and self.observer is None
            and not self.ignores_input
            and not self._ended
            and not self.stopped
            and self._decoder.empty
        )

    @property
    def has_rate(self) -> bool:
        """True if a rate limit applies: see :meth:`count_published`."""
        return self._throttle is not None

    def count_published(self, messages: int, size: int) -> None:
        """Count messages, and all bytes of a read, for the rate limit."""
        if self._throttle is not None:
            self._throttle.count(messages, size)

    def on_read_deferred(self) -> None:
        """Count a deferred read."""
        self._deferred_reads += 1

    def on_read_resumed(self) -> None:
        """Remove a deferred read, which is handled now, from the count."""
        self._deferred_reads -= 1
        self._resume_turn()

    def took(self, size: int, packets: int) -> None:
        """Count packets that were read, and their bytes."""
        node = self._node
        self.handled += 1
        self.last_read = node.clock.monotonic()
        self.bytes_in += size
        self.packets_in += packets
        node.counters.bytes_in += size
        node.counters.packets_in += packets
        if self._alive is not None:
            self._alive.took(size, packets=True)
        if self._paused & ReadPause.TURN:
            self._resume_turn()

    def _resume_turn(self) -> None:
        """Resume reading if no input is left for another turn."""
        if self._paused & ReadPause.TURN and not self._deferred_reads and not self.untaken:
            self.resume(ReadPause.TURN)

    def _lost(self, message: _Lost) -> None:
        """Handle the input received before the end, then the end."""
        if self._deferred_reads and not self._ended:
            self.kernel.later(self, message)
            return
        if self.untaken and not self._ended and not self.authenticating:
            # The same amount per turn as for a connected client.
            if self._throttle is not None:
                self._throttle.take_slice()
            else:
                self.take(b"")
            self.kernel.later(self, message)
            return
        if self._handshake is not None and self.identity is not None and not message.waited:
            message.waited = True  # the broker has not handled the CONNECT yet
            self.kernel.reschedule(self, message)
            return
        if not self._ended:
            self._count_refused(message.error)
        self._end("closed" if message.error is None else "error")
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
        self.listener.admission.forget(self)

    def on_stop(self) -> None:
        """Remove the connection from all counts, and break its reference cycles."""
        self.listener.admission.forget(self)
        self._release_publishers()
        self._transport = None
        self._alive = None
        self._handshake = None
        self._reauthentication = None
        self._throttle = None
        self.session = None

    @property
    def client(self) -> str | None:
        """The client identifier, once it is known."""
        return self.client_id

    @property
    def decoding(self) -> bool:
        """True while decoded packets are left for another turn."""
        return self._decoder.more

    @property
    def settled(self) -> bool:
        """True once the client is no longer new."""
        return self._new_until is None or self._new_until <= self.now

    @property
    def authenticating(self) -> bool:
        """True while the client is being authenticated."""
        return self._handshake is not None and self._handshake.authenticating

    @property
    def authentication_data(self) -> bytes | None:
        """Authentication Data of the login's method for the CONNACK."""
        return self._handshake.server_final if self._handshake is not None else None

    @property
    def untaken(self) -> bool:
        """True while input is left for another turn."""
        return self._decoder.more or (self._throttle is not None and self._throttle.waiting)

    def attached(self, session: Session, keep_alive: int) -> None:
        """Begin to pass packets to a session, which has accepted the CONNECT."""
        self.session = session
        self.connected_ms = self._node.clock.time_ms()
        self._new_until = self.now + _NEW
        if self._handshake is not None:
            self._handshake.cancel_deadline()
        self.last_read = -math.inf
        self.keep_alive = keep_alive
        if keep_alive and self._transport is not None:
            rate = self._node.options.bounds.packet_rate
            self._alive = KeepAlive(self, self._transport, keep_alive, rate)
        if isinstance(self._transport, WebSocketStage):
            # Until now frames were limited to the size of a CONNECT.
            self._transport.max_size = self.listener.options.max_packet_size + _FRAME_ROOM
        maximum = self._node.options.receive_maximum
        if self.properties is not None and maximum < PACKET_IDS:
            self.receive_window = ReceiveWindow(maximum)
        self._take_early()

    def _take_early(self) -> None:
        """Take input buffered after the CONNECT during the login."""
        if self.properties is not None and self.properties.authentication_method is not None:
            if self._handshake is not None:
                self._handshake.take_kept(done=True)
                self._handshake.give_up()
            self._reauthentication = Reauthentication(self._node, self)
        handshake, self._handshake = self._handshake, None
        throttle = self._throttle
        self.resume(ReadPause.CONNECT)
        if handshake is None or throttle is None:
            return
        early, rest = handshake.early()
        throttle.prepend(rest)
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
        self._end(reason)
        self.finish()

    def close(self, reason: str, code: int = 0, about: str = "") -> None:
        """Close the connection once the output waiting at the gate has been written.

        An MQTT 5 client is sent a DISCONNECT with ``code``, or with the reason code that belongs to
        ``reason``, and ``about`` as its reason string. The session, which may still have responses
        to send, determines the moment (:meth:`close_when_written`).
        """
        session = self.session
        if self.properties is not None and self.connected_ms and not self._ended:
            code = code or ENDINGS.get(reason, 0)
            if code:
                limit = self.properties.maximum_packet_size
                told = Explanation(closing_string(reason, about))
                self._farewell = encode_server_disconnect(code, told, limit=limit)
        self._end(reason, code=code)
        self._linger(session)

    def abort(self, reason: str) -> None:
        """Close at once, without waiting for output at the gate."""
        self._end(reason)
        self._close_now()

    def _on_bytes(self, data: bytes) -> None:
        if self._ended:
            return
        node = self._node
        self.last_read = node.clock.monotonic()
        self.bytes_in += len(data)
        node.counters.bytes_in += len(data)
        if len(data) > SLICE_BYTES and self._new_until is not None:
            self._needs_throttle()
        if self._throttle is None or not self._throttle.defer(data):
            self.take(data)

    def _needs_throttle(self) -> InputThrottle:
        """Return the throttle of the client's input, created if necessary."""
        if self._throttle is None:
            self._throttle = InputThrottle(self)
        return self._throttle

    def take_all(self) -> None:
        """Process all input that was read: the broker is shutting down."""
        if self.untaken:
            self.kernel.tell(self, _TAKE_ALL)

    def _take_what_waits(self) -> None:
        if self._throttle is not None:
            self._throttle.take_all()
        while self._decoder.more and not self._ended and not self.authenticating:
            self.take(b"")

    def _drop_throttle(self) -> None:
        """Drop the state that only new and rate-limited clients need."""
        if self._new_until is None and self._throttle is not None and self._throttle.idle:
            self._throttle = None

    def take(self, data: bytes) -> None:
        """Decode bytes and handle their packets."""
        node, handshake = self._node, self._handshake
        if handshake is not None and handshake.authenticating:
            if data:
                handshake.keep(data)
                handshake.hold()
            return
        if self.pace < 1 and not self.kernel.shared:
            self._go_at(1.0)
        packets = self._decoder.feed(data)
        if self._alive is not None:
            self._alive.took(len(data), packets=bool(packets))
        if handshake is not None:
            handshake.hold()
            if self._ended:
                return
        if self.observer is not None:
            self.observer.took(self, packets, self._decoder.error)
        if packets:
            if handshake is not None:
                handshake.begin(packets)
            else:
                self._pass_on(packets)
        if handshake is None and self._throttle is not None:
            self._throttle.count(count_messages(packets), len(data))
        self._close_after_violation()
        if self._decoder.more and not self._ended and not self.authenticating:
            self._take_more_later()
        if node.journal.congested:
            self.pause(ReadPause.LOG)
            node.paused.add(self)

    def take_more(self) -> None:
        """Process input that was read while the client had to wait for an answer."""
        self.resume(ReadPause.CONNECT)
        self._take_what_waits()
        self._close_after_violation()
        self._resume_turn()

    def _take_more_later(self) -> None:
        """Process the remaining packets in another turn; reading pauses meanwhile."""
        self.pause(ReadPause.TURN)
        if self._throttle is not None or self._new_until is not None:
            self._needs_throttle().reschedule()
        else:
            self.kernel.later(self, _TAKE_MORE)

    def read_below(self, size: int) -> bool:
        """Record that a stage read bytes; return whether it should report further reads.

        Before authentication, the bytes count as buffered; afterwards they count for the keep
        alive.
        """
        if self._ended:
            return False
        if self._handshake is not None:
            self._handshake.saw_below(size)
        elif self._alive is not None:
            self._alive.read_below(size)
        else:
            return False
        return True

    @property
    def incomplete(self) -> int:
        """Bytes of an incomplete packet."""
        return self._decoder.buffered

    @property
    def unhandled(self) -> bool:
        """Whether some input was read but not handled yet."""
        return bool(self.mailbox_depth or self._deferred_reads or self.untaken)

    def ignore_input(self) -> None:
        """Ignore further input of the client, whose connection is about to be closed."""
        self.ignores_input = True
        self._decoder.stop()

    def _close_after_violation(self) -> None:
        """Close after a protocol error, once all preceding packets have been handled."""
        error = self._decoder.error
        if error is None or self._ended or self.authenticating:
            return
        if self._decoder.level >= MQTT_5:
            self.end_after_violation(str(error), error.reason)
            return
        self._count_violation(str(error))
        if error.connack is not None:
            self.write(encode_connack(error.connack))
        self.close("protocol_error")

    def end_after_violation(self, about: str, code: int = ReasonCode.PROTOCOL_ERROR) -> None:
        """Close after a protocol error of an MQTT 5 client, with its reason code."""
        self._count_violation(about)
        if not self.connected_ms:
            # The maximum packet size is unknown after an invalid CONNECT.
            told, limit = Explanation(), 0
            if self.properties is not None:
                told = Explanation(closing_string("", about))
                limit = self.properties.maximum_packet_size
            self.write(encode_connack_v5(code, about=told, limit=limit))
        self.close("protocol_error", code, about)

    def _count_violation(self, about: str) -> None:
        limits, now = self._node.limits, self.now
        limits.broken.add(
            "protocol_error", now, client=self.client_id, address=self.address, error=about
        )
        limits.count_fault(self.host, now)

    def _pass_on(self, packets: list[Packet]) -> None:
        """Pass packets to the session in one message; handle a single PINGREQ and DISCONNECT."""
        self._node.counters.took(self, packets)
        reauthentication = self._reauthentication
        if reauthentication is None:
            self._pass_to_session(packets)
            return
        for is_auth, some in groupby(packets, lambda packet: type(packet) is Auth):
            if self._ended:
                return
            if is_auth:
                for packet in some:
                    reauthentication.take(cast("Auth", packet))
            else:
                self._pass_to_session([*some])

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
                fitting = window.take(packet, self._node.journal)
                if fitting < len(packet):
                    packets[at:] = [packet.select(range(fitting))] if fitting else []
                    return True
        return False

    def leave(self, packet: Disconnect) -> None:
        """Handle a DISCONNECT: the will is published unless the reason code is 0."""
        properties, expiry = self.properties, packet.session_expiry
        if properties is not None and expiry and not properties.session_expiry:
            # The session ends with its connection, as the CONNECT requested [MQTT-3.14.2-2].
            about = "DISCONNECT with a session expiry although CONNECT had none"
            self._node.limits.broken.add(
                "protocol_error",
                self.now,
                client=self.client_id,
                address=self.address,
                error=about,
            )
            self.close("protocol_error", ReasonCode.PROTOCOL_ERROR, about)
            return
        session = self.session
        orderly = packet.reason == ReasonCode.SUCCESS
        self._end("disconnect", orderly=orderly, code=packet.reason, expiry=expiry)
        self._linger(session)

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
        self._expiry_due = 0.0
        self._check_expiry()

    def count_fault(self, reason: str) -> None:
        """Count the closing of this connection by reason, and a fault of the client's address."""
        limits, now = self._node.limits, self.now
        limits.refused.add(reason, now, client=self.client_id)
        limits.count_fault(self.host, now)

    def set_rate_limiter(self, set_rate_limiter: RateLimiter | None) -> None:
        """Set the rate limiter that counts the client's publications."""
        if set_rate_limiter is not None:
            self._needs_throttle()
        if self._throttle is not None:
            self._throttle.rate_limiter = set_rate_limiter
            self._drop_throttle()

    def _check_expiry(self) -> None:
        """Close the connection if the credentials of the client have expired."""
        if self._ended or self.identity is None or not self.identity.expires_ms:
            return
        if self.now < self._expiry_due:
            return  # this timer was set before a re-authentication
        left = (self.identity.expires_ms - self._node.clock.time_ms()) / 1000
        if left <= 0:
            _log.info("login expired", client=self.client_id, address=self.address)
            self.close_soon("login_expired")
            return
        wait = min(left, _LONGEST_TIMER)
        self._expiry_due = self.now + wait
        self.remind(self.timers, wait, self._check_expiry)

    def _end(
        self, reason: str, *, orderly: bool = False, code: int = 0, expiry: int | None = None
    ) -> None:
        """Tell the session, once, that the connection has ended."""
        if self._ended:
            return
        self._ended = True
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


def _is_one_packet(data: bytes) -> bool:
    """Return whether a read is a single packet of less than 16 KiB."""
    if len(data) < 3 or data[1] < 128:
        return len(data) > 1 and len(data) == 2 + data[1]
    return data[2] < 128 and len(data) == 3 + (data[1] & 127 | data[2] << 7)
