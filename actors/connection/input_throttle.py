"""Buffers received bytes and releases them in slices, at the client's permitted rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from actors.limits.publish_rates import RateLimiter
from actors.node.read_pause import ReadPause
from actors.session.session_messages import Close
from protocol.mqtt.packets import Packet, Publishes, Subscribe, Unsubscribe

if TYPE_CHECKING:
    from actors.connection.core import ConnectionCore

SLICE_BYTES: Final[int] = 32 * 1024
"""Maximum bytes of a slice."""
_HEAVY, _DELIVERED, _HEAVY_TIME = 1000, 10, 0.1
"""Packets per second above which a client is heavy; number of deliveries of its publications that
count as one more packet; seconds between two checks."""

CONTINUE = object()
"""Tells a connection to process more of its buffered input."""


class InputLoad:
    """Measures whether a client is heavy: it causes so much work that others take priority."""

    __slots__ = ("_counted", "_counted_at", "heavy")

    def __init__(self, connection: ConnectionCore, now: float) -> None:
        self._counted = _work_of(connection)
        """Packets and deliveries at the last check."""
        self._counted_at = now
        self.heavy = False
        """Whether the client is heavy: others take priority."""

    def is_heavy(self, connection: ConnectionCore, now: float) -> bool:
        """Return whether the client is heavy at this time."""
        count = _work_of(connection)
        seconds, more = now - self._counted_at, count - self._counted
        if seconds >= _HEAVY_TIME:
            self.heavy = more > _HEAVY * seconds
            self._counted, self._counted_at = count, now
        elif more > _HEAVY * _HEAVY_TIME:
            self.heavy = True
        return self.heavy


class InputThrottle:
    """Holds the input of a client that is new or has a rate limit.

    Input waits here between two slices, so that other clients are served in between.
    ``rate_limiter`` is set for a client with a rate limit; it counts input and returns the length
    of the pause that follows.
    """

    __slots__ = ("_connection", "_continuing", "_read_from", "_rest", "rate_limiter")

    def __init__(self, connection: ConnectionCore) -> None:
        self._connection = connection
        self._continuing = False
        self._read_from = 0.0
        """Monotonic time until which nothing is read, because the client published too fast."""
        self._rest = b""
        self.rate_limiter: RateLimiter | None = None

    @property
    def waiting(self) -> bool:
        """True while input waits."""
        return bool(self._rest) or self._connection.decoding

    @property
    def idle(self) -> bool:
        """True while no input waits and no rate applies."""
        waits = self.waiting or self._continuing or self._connection.paused & ReadPause.RATE
        return self.rate_limiter is None and not waits

    @property
    def open(self) -> bool:
        """True while a small read need not wait here."""
        return not (
            self._rest
            or self._continuing
            or self._connection.decoding
            or self._connection.paused & ReadPause.RATE
        )

    def defer(self, data: bytes) -> bool:
        """Return whether input must wait here; otherwise the caller processes it now."""
        connection = self._connection
        free = not self._rest and not connection.decoding
        if free and len(data) <= SLICE_BYTES and not connection.paused & ReadPause.RATE:
            return False
        self._rest += data
        connection.pause(ReadPause.TURN)
        self.reschedule()
        return True

    def prepend(self, data: bytes) -> None:
        """Put input before all other waiting input; does not schedule its processing."""
        self._rest = data + self._rest

    def continue_(self) -> None:
        """Handle :data:`CONTINUE`: process a slice, unless the rate forbids it now."""
        self._continuing = False
        connection = self._connection
        if connection.authenticating:
            return  # it continues when the CONNECT is accepted
        due = self.waiting
        if due and not connection.ended and not connection.paused & ReadPause.RATE:
            self.feed_slice()
            if self.waiting:
                self.reschedule()
            else:
                connection.resume(ReadPause.TURN)

    def continue_later(self) -> None:
        """Schedule a slice for when other actors are idle; called when input may continue."""
        if self.waiting and not self._continuing:
            self._continuing = True
            connection = self._connection
            connection.pause(ReadPause.TURN)
            if connection.settled:
                connection.kernel.later(connection, CONTINUE)
            else:
                connection.kernel.tell_low_priority(connection, CONTINUE)

    def feed_all(self) -> None:
        """Process all waiting input, regardless of the rate: no more will arrive."""
        while self.waiting and not self._connection.ended and not self._connection.authenticating:
            self.feed_slice()

    def clear(self) -> None:
        """Discard waiting input."""
        self._rest = b""

    def feed_slice(self) -> None:
        """Process a slice of the waiting input."""
        part = b""
        if not self._connection.decoding:
            part, self._rest = self._rest[:SLICE_BYTES], self._rest[SLICE_BYTES:]
        self._connection.feed(part)

    def reschedule(self) -> None:
        """Schedule a slice, after other work; called while the connection runs."""
        if not self._continuing:
            self._continuing = True
            connection = self._connection
            if connection.settled:  # authenticated clients get normal priority
                connection.kernel.later(connection, CONTINUE)
            else:
                connection.kernel.reschedule(connection, CONTINUE)

    # Rates.

    def apply_debt(self) -> None:
        """Apply the debt of the client's address or user."""
        if self.rate_limiter is not None and (wait := self.rate_limiter.debt(self._connection.now)):
            self._wait(wait)

    def count(self, messages: int, size: int) -> None:
        """Count messages and bytes of input; pause reading if they exceed the rate."""
        rate_limiter, connection = self.rate_limiter, self._connection
        if rate_limiter is None:
            return
        now = connection.now
        wait = rate_limiter.took(messages, size, now)
        if not wait:
            return
        if rate_limiter.is_throttled_too_long(now):
            connection.count_fault("publish_rate")
            connection.ignore_input()
            self.clear()
            connection.kernel.tell(connection, Close("publish_rate"))
            return
        self._wait(wait)

    def _wait(self, seconds: float) -> None:
        connection = self._connection
        self._read_from = max(self._read_from, connection.now + seconds)
        if not connection.paused & ReadPause.RATE:
            connection.pause(ReadPause.RATE)
            connection.start_timer(connection.timers, seconds, self._rate_over)

    def _rate_over(self) -> None:
        connection = self._connection
        if connection.stopped:
            return
        remaining_seconds = self._read_from - connection.now
        if remaining_seconds > 0:
            connection.start_timer(connection.timers, remaining_seconds, self._rate_over)
        else:
            connection.resume(ReadPause.RATE)
            self.continue_later()


def _work_of(connection: ConnectionCore) -> int:
    """Return the number of packets, and of deliveries that count as packets, of a client."""
    return connection.packets_in + connection.caused // _DELIVERED


def count_messages(packets: list[Packet]) -> int:
    """Return the number of messages and topic filters in packets, which determine their cost."""
    count = 0
    for packet in packets:
        if type(packet) is Publishes:
            count += len(packet)
        elif isinstance(packet, (Subscribe, Unsubscribe)):
            count += len(packet.filters)
    return count
