"""The input side of the connection actor: when a read is handled, and how much of it in one turn.

Clients that send little come first, then heavy ones and large reads, which are longer work done in
parts; last come new clients, of which the broker knows nothing yet. A read therefore goes one of
three ways to the actor: it is gathered with those of other clients, waits for a turn of its own, or
has low priority. What may not be taken at once waits in
:class:`~actors.connection.input_throttle.InputThrottle`. Here bytes become packets; what they mean
is up to :class:`~actors.connection.connection.Connection`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from actors.connection.connect_handshake import ConnectHandshake
from actors.connection.core import ConnectionCore
from actors.connection.input_throttle import (
    CONTINUE,
    SLICE_BYTES,
    InputLoad,
    InputThrottle,
    count_messages,
)
from actors.connection.keep_alive import KeepAlive
from actors.connection.socket_closer import SocketCloser
from actors.kernel.actor import DeferredRead
from actors.kernel.kernel import LATER_SLICE
from actors.limits.publish_rates import RateLimiter
from actors.node.read_pause import ReadPause
from actors.session.node_context import NodeContext
from protocol.mqtt.decoder import Decoder
from protocol.mqtt.packets import Packet
from protocol.mqtt.protocol_error import ProtocolError

if TYPE_CHECKING:
    from actors.connection.listener import Listener

_SMALL = 4096
"""Bytes of a new client that may wait without a pause in reading."""
_NEW = 1.0
"""Seconds after the CONNECT for which the client's input has low priority; shorter for a client
that sends a single packet while no other new client waits."""
_PACKETS_AT_ONCE = 4096
"""Approximate maximum of packets of a client per turn; one of QoS 1 or 2 counts as eight."""
_LARGE = 2 * 1024
"""Size above which a read is handled after the reads of clients that send less."""
_MIN_AT_ONCE = 256
"""Lower limit of ``_PACKETS_AT_ONCE`` while light clients are active."""
_PUBLISH, _PUBACK, _PUBREL, _SUBSCRIBE = b"\x30", b"\x40", b"\x62", b"\x80"
"""First bytes of PUBLISH, PUBACK, PUBREL and SUBSCRIBE; those of the other acknowledgements are
between the second and the last."""
_QOS = 0x06
"""Bits of the QoS in the first byte of a PUBLISH."""
_ACKS, _ACK_BYTES = frozenset({b"\x40", b"\x50", b"\x70"}), 4
_COMPLETING = b"\x40\x70"
"""First bytes of PUBACK and PUBCOMP: no client waits for what follows from them."""
_COMPLETED_WITHIN = 0.01
"""Maximum seconds for which such acknowledgements wait for a turn that something else causes."""
_DEFERRABLE = _ACKS | {b"\xc0"}
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


_FEED_ALL = object()
"""Tells the connection to take all input now."""
_FEED_MORE = object()
"""Tells the connection to take packets beyond those of the last turn."""


class InputActor(ConnectionCore):
    """An actor that takes the input of a client from its transport."""

    begins_turns = True
    __slots__ = (
        "_alive",
        "_decoder",
        "_deferred_reads",
        "_handshake",
        "_new_until",
        "_read_between",
        "_throttle",
        "bytes_in",
        "ignores_input",
        "independent_until",
        "joined",
        "last_ack",
        "last_read",
        "load",
        "pace",
    )

    def __init__(self, node: NodeContext, listener: Listener, closer: SocketCloser) -> None:
        super().__init__(node, listener, closer)
        self._alive: KeepAlive | None = None
        """None without a keep alive."""
        self._decoder = Decoder(listener.options.max_packet_size, _PACKETS_AT_ONCE, listener.v5)
        self._deferred_reads = 0
        """Number of reads handled after those of clients that send little."""
        self._handshake: ConnectHandshake | None = None
        """None once the CONNECT is accepted."""
        self._throttle: InputThrottle | None = None
        """Holds input that is not processed yet; None for a client that is neither new nor
        limited."""
        self._new_until: float | None = math.inf
        """Monotonic time at which the client stops being new; None afterwards."""
        self._read_between = -1
        """Number of the turn during whose breaks the last read arrived."""
        self.bytes_in = 0
        self.ignores_input = False
        """Whether the connection is about to be closed, so that unhandled input is ignored."""
        self.independent_until = -math.inf
        """Time until which the client counts as independent of answers; see
        :mod:`actors.kernel.gathering`."""
        self.joined = -math.inf
        """Time at which the client's last read began to wait for others."""
        self.last_ack = -math.inf
        """``last_read`` when the client last acknowledged a delivery."""
        self.last_read = -math.inf
        """Time of the last read after the CONNECT, in seconds of the broker's clock."""
        self.load: InputLoad | None = None
        """Measures the client's input; None while a new client has published nothing."""
        self.pace = 1.0
        """Fraction of the usual work that the client may cause in one turn while others wait."""

    # What packets and the end mean: implemented by the connection.

    def _pass_on(self, packets: list[Packet]) -> None:
        """Handle packets that follow an accepted CONNECT."""
        raise NotImplementedError

    def _violated(self, error: ProtocolError) -> None:
        """Close after a protocol error; all preceding packets have been handled."""
        raise NotImplementedError

    def _disconnected(self, error: Exception | None) -> None:
        """Handle the end of the connection; all input has been handled."""
        raise NotImplementedError

    def _on_request(self, message: Any) -> None:
        """Handle a message that is not input."""
        raise NotImplementedError

    def pause(self, reason: int) -> None:
        """Stop reading until every reason for the pause is removed."""
        if not self.paused and self._alive is not None:
            self._alive.pause()
        super().pause(reason)

    def resume(self, reason: int) -> None:
        """Remove a reason for the pause; resume reading if it was the last one."""
        paused = self.paused
        super().resume(reason)
        if paused and not self.paused and self._alive is not None:
            self._alive.resume()

    # Calls of the transport.

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
                if data[:1] not in _DEFERRABLE:
                    self.kernel.light_at = now
                if self.pace < 1:
                    self._go_at(min(1.0, self.pace * 1.5))
                seconds = 0.0 if kernel.scheduled else self._may_wait(data)
                if seconds:
                    kernel.gather_waiting(self, data, seconds)
                else:
                    kernel.gather(self, data)
        else:
            if self._handshake is not None and not self.ended:
                self._handshake.saw(len(data))
            if self.load is None and self.session is not None and _PUBLISH <= data[:1] < _PUBACK:
                self.load = InputLoad(self, self.kernel.clock())
            if self.mailbox_depth or len(data) > _SMALL:
                self.pause(ReadPause.TURN)
            self.kernel.tell_low_priority(self, data, first=self.identity is not None)

    def _may_wait(self, data: bytes) -> float:
        """Return for how many seconds a read may wait for others; 0: no longer than now."""
        kernel, first, session = self.kernel, data[:1], self.session
        if session is None or self.observer is not None or not kernel.may_wait():
            return 0.0
        if first in _ACKS:
            if data[0] in _COMPLETING and self._completes(data) and not session.awaits_acks:
                return _COMPLETED_WITHIN
            return kernel.gathering.left(self.now)
        if first == _PUBREL:
            return kernel.gathering.left(self.now)
        if not (_PUBLISH <= first < _PUBACK and data[0] & _QOS):
            return 0.0
        gathering, now = kernel.gathering, self.now
        if not gathering.delay:
            return 0.0
        until = gathering.independent_until(now, self.joined, self.independent_until)
        self.independent_until = until
        joins = gathering.joins(
            now, len(data), released=self.released, until=until, took=kernel.last_took
        )
        if not joins:
            return 0.0
        if self.joined < gathering.began:
            self.joined = now
        return gathering.left(now)

    def _completes(self, data: bytes) -> bool:
        """Return whether a read consists of PUBACK and PUBCOMP packets without a reason."""
        if len(data) == _ACK_BYTES:
            return data[1] == 2
        firsts, sizes = data[::_ACK_BYTES], data[1::_ACK_BYTES]
        return not (len(data) % _ACK_BYTES or firsts.strip(_COMPLETING) or sizes.strip(b"\x02"))

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

    def connection_lost(self, exc: Exception | None) -> None:
        """Put the end into the mailbox, after earlier reads."""
        self._gone = True
        if not self.stopped and not self.ended:
            if self._deferred_reads:
                self.kernel.later(self, _Lost(exc))
            elif self._new_until is None:
                self.kernel.tell(self, _Lost(exc))
            else:
                self.kernel.tell_low_priority(self, _Lost(exc))
        elif not self.stopped:
            self.stop()

    def read_below(self, size: int) -> bool:
        """Record that a stage read bytes; return whether it should report further reads.

        Before authentication, the bytes count as buffered; afterwards they count for the keep
        alive.
        """
        if self.ended:
            return False
        if self._handshake is not None:
            self._handshake.saw_below(size)
        elif self._alive is not None:
            self._alive.read_below(size)
        else:
            return False
        return True

    # Messages of the actor.

    def on_receive(self, message: Any) -> None:
        """Handle input, or the end of the connection behind it."""
        if type(message) is bytes:
            self._on_bytes(message)
            self._resume_turn()
        elif type(message) is DeferredRead:
            self.on_read_resumed()
            self.on_receive(message.data)
        elif message is _FEED_MORE:
            if self._decoder.more and not self.ended:
                self.feed(b"")
            self._resume_turn()
        elif message is CONTINUE:
            if self._throttle is not None:
                self._throttle.continue_()
                self._drop_throttle()
        elif type(message) is _Lost:
            self._lost(message)
        elif message is _FEED_ALL:
            self._feed_what_waits()
        else:
            self._on_request(message)

    # Members used by the fast path, which handles many connections in one pass; see
    # ``actors.fast_path``.

    def _on_bytes(self, data: bytes) -> None:
        if self.ended:
            return
        node = self._node
        self.last_read = node.clock.monotonic()
        self.bytes_in += len(data)
        node.counters.bytes_in += len(data)
        if len(data) > SLICE_BYTES and self._new_until is not None:
            self._needs_throttle()
        if self._throttle is None or not self._throttle.defer(data):
            self.feed(data)

    def _lost(self, message: _Lost) -> None:
        """Handle the input received before the end, then the end."""
        if self._deferred_reads and not self.ended:
            self.kernel.later(self, message)
            return
        if self.untaken and not self.ended and not self.authenticating:
            # The same amount per turn as for a connected client.
            if self._throttle is not None:
                self._throttle.feed_slice()
            else:
                self.feed(b"")
            self.kernel.later(self, message)
            return
        if self._handshake is not None and self.identity is not None and not message.waited:
            message.waited = True  # the broker has not handled the CONNECT yet
            self.kernel.reschedule(self, message)
            return
        self._disconnected(message.error)

    def feed_all(self) -> None:
        """Process all input that was read: the broker is shutting down."""
        if self.untaken:
            self.kernel.tell(self, _FEED_ALL)

    def _feed_what_waits(self) -> None:
        if self._throttle is not None:
            self._throttle.feed_all()
        while self._decoder.more and not self.ended and not self.authenticating:
            self.feed(b"")

    def feed(self, data: bytes) -> None:
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
            if self.ended:
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
        if self._decoder.more and not self.ended and not self.authenticating:
            self._feed_more_later()
        if node.journal.congested and (self._handshake is None or self.authenticating):
            # The rest of a CONNECT does not wait: a later one of the client may be complete.
            self.pause(ReadPause.LOG)
            node.paused[self] = None

    def feed_more(self) -> None:
        """Process input that was read while the client had to wait for an answer."""
        self.resume(ReadPause.CONNECT)
        self._feed_what_waits()
        self._close_after_violation()
        self._resume_turn()

    def _feed_more_later(self) -> None:
        """Process the remaining packets in another turn; reading pauses meanwhile."""
        self.pause(ReadPause.TURN)
        if self._throttle is not None or self._new_until is not None:
            self._needs_throttle().reschedule()
        else:
            self.kernel.later(self, _FEED_MORE)

    def _resume_turn(self) -> None:
        """Resume reading if no input is left for another turn."""
        if self.paused & ReadPause.TURN and not self._deferred_reads and not self.untaken:
            self.resume(ReadPause.TURN)

    def ignore_input(self) -> None:
        """Ignore further input of the client, whose connection is about to be closed."""
        self.ignores_input = True
        self._decoder.stop()

    def _close_after_violation(self) -> None:
        """Close after a protocol error, once all preceding packets have been handled."""
        error = self._decoder.error
        if error is not None and not self.ended and not self.authenticating:
            self._violated(error)

    def on_part_done(self, seconds: float) -> None:
        """Adapt the length of further parts of longer work to the duration of the last one."""
        if seconds > LATER_SLICE:
            self._go_at(max(_SLOWEST, self.pace * max(0.25, LATER_SLICE / seconds)))
        elif self.pace < 1 and seconds < LATER_SLICE / 2:
            self._go_at(min(1.0, self.pace * 1.5))

    def _go_at(self, pace: float) -> None:
        self.pace = pace
        self._decoder.at_once = max(_MIN_AT_ONCE, int(_PACKETS_AT_ONCE * pace))

    # Clients that are new or have a rate limit.

    def _begin_new(self) -> None:
        """Note that the CONNECT was accepted: the client stops being new soon."""
        self._new_until = self.now + _NEW
        self.last_read = -math.inf

    def _needs_throttle(self) -> InputThrottle:
        """Return the throttle of the client's input, created if necessary."""
        if self._throttle is None:
            self._throttle = InputThrottle(self)
        return self._throttle

    def _drop_throttle(self) -> None:
        """Drop the state that only new and rate-limited clients need."""
        if self._new_until is None and self._throttle is not None and self._throttle.idle:
            self._throttle = None

    def set_rate_limiter(self, rate_limiter: RateLimiter | None) -> None:
        """Set the rate limiter that counts the client's publications."""
        if rate_limiter is not None:
            self._needs_throttle()
        if self._throttle is not None:
            self._throttle.rate_limiter = rate_limiter
            self._drop_throttle()

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
            and not self.ended
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
        if self.paused & ReadPause.TURN:
            self._resume_turn()

    # What others see of the input.

    @property
    def authenticating(self) -> bool:
        """True while the client is being authenticated."""
        return self._handshake is not None and self._handshake.authenticating

    @property
    def decoding(self) -> bool:
        """True while decoded packets are left for another turn."""
        return self._decoder.more

    @property
    def incomplete(self) -> int:
        """Bytes of an incomplete packet."""
        return self._decoder.buffered

    @property
    def settled(self) -> bool:
        """True once the client is no longer new."""
        return self._new_until is None or self._new_until <= self.now

    @property
    def unhandled(self) -> bool:
        """Whether some input was read but not handled yet."""
        waits = self.mailbox_depth or self._deferred_reads or self.untaken
        return bool(waits) or self.kernel.is_waiting(self)

    @property
    def untaken(self) -> bool:
        """True while input is left for another turn."""
        return self._decoder.more or (self._throttle is not None and self._throttle.waiting)


def _is_one_packet(data: bytes) -> bool:
    """Return whether a read is a single packet of less than 16 KiB."""
    if len(data) < 3 or data[1] < 128:
        return len(data) > 1 and len(data) == 2 + data[1]
    return data[2] < 128 and len(data) == 3 + (data[1] & 127 | data[2] << 7)
