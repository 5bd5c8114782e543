"""Buffers received bytes and releases them in pieces, at the client's permitted rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.node import ReadPause
from actors.session import Close
from protocol.mqtt import Publishes, Subscribe, Unsubscribe

if TYPE_CHECKING:
    from actors.connection.connection import Connection
    from actors.limits import RateLimiter
    from protocol.mqtt import Packet

_SLICE_BYTES = 16 * 1024
"""Bytes that are taken at once."""
_HEAVY, _DELIVERED, _HEAVY_TIME = 1000, 10, 0.1
"""Packets a second from which a client is no light one; how many deliveries of what it published
count as one more; seconds between two looks at them."""

CONTINUE = object()
"""Told to itself by a connection that has not taken all of what it read."""


class InputLoad:
    """Whether a client sends, and causes, so much that others come first."""

    __slots__ = ("_counted", "_counted_at", "heavy")

    def __init__(self) -> None:
        self._counted = 0
        """Packets and deliveries when it was last looked at how many there are."""
        self._counted_at = 0.0
        self.heavy = False
        """It sends so much that others come first."""

    def begin(self, now: float) -> None:
        """Count from now on: the client has just been let in."""
        self._counted_at = now

    def is_heavy(self, connection: Connection, now: float) -> bool:
        """Return whether the client sends so many packets that others come first."""
        count = connection.packets_in + connection.caused // _DELIVERED
        seconds, more = now - self._counted_at, count - self._counted
        if seconds >= _HEAVY_TIME:
            self.heavy = more > _HEAVY * seconds
            self._counted, self._counted_at = count, now
        elif more > _HEAVY * _HEAVY_TIME:
            self.heavy = True
        return self.heavy


class InputThrottle:
    """The way into a connection of a client that is new, or may not send as fast as it likes.

    Input waits here between two slices, so that other clients come in between. ``rate_limiter`` is
    set while there is a rate; it counts what was taken, and says for how long nothing more is.
    """

    __slots__ = ("__weakref__", "_connection", "_continuing", "_read_from", "_rest", "rate_limiter")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._continuing = False
        self._read_from = 0.0
        """Monotonic time until which nothing is read, as it published too fast."""
        self._rest = b""
        self.rate_limiter: RateLimiter | None = None

    @property
    def waiting(self) -> bool:
        """True while something waits to be taken."""
        return bool(self._rest) or self._connection.decoding

    @property
    def idle(self) -> bool:
        """True while nothing waits, and nothing is counted."""
        waits = self.waiting or self._continuing or self._connection.paused & ReadPause.RATE
        return self.rate_limiter is None and not waits

    def defer(self, data: bytes) -> bool:
        """Say whether what was read has to wait here; if not it is to be taken at once."""
        connection = self._connection
        free = not self._rest and not connection.decoding
        if free and len(data) <= _SLICE_BYTES and not connection.paused & ReadPause.RATE:
            return False
        self._rest += data
        connection.pause(ReadPause.TURN)
        self.reschedule()
        return True

    def prepend(self, data: bytes) -> None:
        """Let what was read before all else wait here; nothing goes on by itself."""
        self._rest = data + self._rest

    def continue_(self) -> None:
        """Take a bite, unless it may send nothing now; its connection was told :data:`CONTINUE`."""
        self._continuing = False
        connection = self._connection
        if connection.authenticating:
            return  # it goes on when the CONNECT is accepted
        if self.waiting and not connection.ended and not connection.paused & ReadPause.RATE:
            self.take_slice()
            if self.waiting:
                self.reschedule()
            else:
                connection.resume(ReadPause.TURN)

    def continue_later(self) -> None:
        """Take a bite when others have nothing to do; to be called when it may go on again."""
        if self.waiting and not self._continuing:
            self._continuing = True
            connection = self._connection
            connection.pause(ReadPause.TURN)
            if connection.settled:
                connection.kernel.later(connection, CONTINUE)
            else:
                connection.kernel.tell_low_priority(connection, CONTINUE)

    def take_all(self) -> None:
        """Take all that waits, whatever the rate: nothing more will come."""
        while self.waiting and not self._connection.ended and not self._connection.authenticating:
            self.take_slice()

    def clear(self) -> None:
        """Throw away what waits."""
        self._rest = b""

    def take_slice(self) -> None:
        """Take a bite of what waits."""
        part = b""
        if not self._connection.decoding:
            part, self._rest = self._rest[:_SLICE_BYTES], self._rest[_SLICE_BYTES:]
        self._connection.take(part)

    def reschedule(self) -> None:
        """Take a bite later. From within a run of the connection, behind which others come."""
        if not self._continuing:
            self._continuing = True
            connection = self._connection
            if connection.settled:  # it is no unauthenticated connection that waits
                connection.kernel.later(connection, CONTINUE)
            else:
                connection.kernel.reschedule(connection, CONTINUE)

    # As fast as it may send.

    def apply_debt(self) -> None:
        """Begin with what its address or its user took too much before."""
        if self.rate_limiter is not None and (wait := self.rate_limiter.debt(self._connection.now)):
            self._wait(wait)

    def count(self, packets: list[Packet], size: int) -> None:
        """Count what was taken; read nothing for a while if that is more than there may be."""
        rate_limiter, connection = self.rate_limiter, self._connection
        if rate_limiter is None:
            return
        now = connection.now
        wait = rate_limiter.took(_asked(packets), size, now)
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
            connection.timers.remind(seconds, self._rate_over)

    def _rate_over(self) -> None:
        connection = self._connection
        if connection.stopped:
            return
        left = self._read_from - connection.now
        if left > 0:
            connection.timers.remind(left, self._rate_over)
        else:
            connection.resume(ReadPause.RATE)
            self.continue_later()


def _asked(packets: list[Packet]) -> int:
    """Return how many messages and topic filters packets hold: what costs the broker work."""
    count = 0
    for packet in packets:
        if type(packet) is Publishes:
            count += len(packet)
        elif isinstance(packet, (Subscribe, Unsubscribe)):
            count += len(packet.filters)
    return count
