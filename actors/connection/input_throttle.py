"""What was read of a client and is not taken yet: in bites, and as fast as it may send."""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.node.read_pause import ReadPause
from actors.session.messages import Close
from protocol.mqtt import Publishes, Subscribe, Unsubscribe

if TYPE_CHECKING:
    from actors.connection.connection import Connection
    from actors.limits.publish_rates import RateLimiter
    from protocol.mqtt import Packet

_BITE = 16 * 1024
"""Bytes that are taken at once."""
_HEAVY, _DELIVERED, _HEAVY_TIME = 1000, 10, 0.1
"""Packets a second from which a client is no light one; how many deliveries of what it published
count as one more; seconds between two looks at them."""

GO_ON = object()
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

    def sends_much(self, connection: Connection, now: float) -> bool:
        """Return whether the client sends so many packets that others come first."""
        if now - self._counted_at >= _HEAVY_TIME:
            count = connection.packets_in + connection.caused // _DELIVERED
            self.heavy = count - self._counted > _HEAVY * (now - self._counted_at)
            self._counted, self._counted_at = count, now
        return self.heavy


class InputThrottle:
    """The way into a connection of a client that is new, or may not send as fast as it likes.

    What it sends waits here between two bites, so that others come in between. ``meter`` is set
    while there is a rate; it counts what was taken, and says for how long nothing more is.
    """

    __slots__ = ("__weakref__", "_connection", "_going_on", "_read_from", "_rest", "meter")

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._going_on = False
        self._read_from = 0.0
        """Monotonic time until which nothing is read, as it published too fast."""
        self._rest = b""
        self.meter: RateLimiter | None = None

    @property
    def waiting(self) -> bool:
        """True while something waits to be taken."""
        return bool(self._rest) or self._connection.decoding

    @property
    def idle(self) -> bool:
        """True while nothing waits, and nothing is counted."""
        waits = self.waiting or self._going_on or self._connection.paused & ReadPause.RATE
        return self.meter is None and not waits

    def keeps(self, data: bytes) -> bool:
        """Say whether what was read has to wait here; if not it is to be taken at once."""
        connection = self._connection
        free = not self._rest and not connection.decoding
        if free and len(data) <= _BITE and not connection.paused & ReadPause.RATE:
            return False
        self._rest += data
        connection.pause(ReadPause.TURN)
        self.again()
        return True

    def put_first(self, data: bytes) -> None:
        """Let what was read before all else wait here; nothing goes on by itself."""
        self._rest = data + self._rest

    def go_on(self) -> None:
        """Take a bite, unless it may send nothing now; its connection was told :data:`GO_ON`."""
        self._going_on = False
        connection = self._connection
        if connection.looking:
            return  # it goes on when the CONNECT is accepted
        if self.waiting and not connection.ended and not connection.paused & ReadPause.RATE:
            self.take_one()
            if self.waiting:
                self.again()
            else:
                connection.resume(ReadPause.TURN)

    def go_on_later(self) -> None:
        """Take a bite when others have nothing to do; to be called when it may go on again."""
        if self.waiting and not self._going_on:
            self._going_on = True
            connection = self._connection
            connection.pause(ReadPause.TURN)
            if connection.settled:
                connection.kernel.later(connection, GO_ON)
            else:
                connection.kernel.put_off(connection, GO_ON)

    def take_all(self) -> None:
        """Take all that waits, whatever the rate: nothing more will come."""
        while self.waiting and not self._connection.ended and not self._connection.looking:
            self.take_one()

    def clear(self) -> None:
        """Throw away what waits."""
        self._rest = b""

    def take_one(self) -> None:
        """Take a bite of what waits."""
        bite = b""
        if not self._connection.decoding:
            bite, self._rest = self._rest[:_BITE], self._rest[_BITE:]
        self._connection.take(bite)

    def again(self) -> None:
        """Take a bite later. From within a run of the connection, behind which others come."""
        if not self._going_on:
            self._going_on = True
            connection = self._connection
            if connection.settled:  # nobody is to take it for a stranger that waits
                connection.kernel.later(connection, GO_ON)
            else:
                connection.kernel.again(connection, GO_ON)

    # As fast as it may send.

    def owe(self) -> None:
        """Begin with what its address or its user took too much before."""
        if self.meter is not None and (wait := self.meter.debt(self._connection.now)):
            self._wait(wait)

    def count(self, packets: list[Packet], size: int) -> None:
        """Count what was taken; read nothing for a while if that is more than there may be."""
        meter, connection = self.meter, self._connection
        if meter is None:
            return
        now = connection.now
        wait = meter.took(_asked(packets), size, now)
        if not wait:
            return
        if meter.tries_patience(now):
            connection.blame("publish_rate")
            connection.stop_listening()
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
            self.go_on_later()


def _asked(packets: list[Packet]) -> int:
    """Return how many messages and topic filters packets hold: what costs the broker work."""
    count = 0
    for packet in packets:
        if type(packet) is Publishes:
            count += len(packet)
        elif isinstance(packet, (Subscribe, Unsubscribe)):
            count += len(packet.filters)
    return count
