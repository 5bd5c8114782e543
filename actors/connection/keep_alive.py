"""The keep alive of a client: measures how long it has been silent [MQTT-3.1.2-24].

Each complete packet ends the silence. A large packet on a slow line may take longer than the
permitted silence, so progress also counts while a packet is incomplete: the silence ends each time
the number of bytes that ``packet_rate`` requires for that time has arrived. An occasional byte is
not enough; see ``actors/access/DESIGN.md``.

Delays of the broker do not count as silence: while the client is not read, its time is suspended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import structlog

from actors.session.session_messages import Close
from actors.transports.stage import Stage

if TYPE_CHECKING:
    import asyncio

    from actors.connection.core import ConnectionCore

_log = structlog.get_logger("foldmq")

_STANDSTILL = 0.5
"""Seconds of suspension of the process after which silence of clients does not count."""
_GRACE = 1.0
"""Minimum seconds that a client gets when reading resumes: its data may still be in transit."""
_LONGEST_TIMER = 60.0


class KeepAlive:
    """The keep alive of one client, which is closed after a silence of 1.5 times ``keep_alive``.

    ``packet_rate`` is the rate in bytes per second at which an incomplete packet must arrive. Times
    are monotonic, in seconds.
    """

    __slots__ = (
        "_allowed",
        "_connection",
        "_counted_below",
        "_enough",
        "_heard",
        "_overdue",
        "_packet",
        "_paused",
        "_size",
        "_transport",
    )

    def __init__(
        self,
        connection: ConnectionCore,
        transport: asyncio.Transport,
        keep_alive: int,
        packet_rate: float,
    ) -> None:
        self._connection = connection
        self._transport = transport
        # Stages also report incomplete frames and TLS records.
        self._counted_below = isinstance(transport, Stage)
        self._allowed = keep_alive * 1.5
        self._enough = packet_rate * self._allowed
        now = connection.now
        self._packet = now
        """When the last complete packet was processed."""
        self._heard = now
        """When the silence last ended: a complete packet, or enough of an incomplete one."""
        self._size = 0
        """Bytes received since the silence last ended."""
        self._paused: float | None = now if connection.paused else None
        """When the current pause of reading began; None: the client is read."""
        self._overdue = False
        """Whether the deadline passed while reading was paused."""
        self._start_timer(self._allowed)

    def took(self, size: int, *, packets: bool) -> None:
        """Count decoded bytes; ``packets``: they completed at least one packet."""
        if packets:
            self._packet = self._heard = self._connection.now
            self._size = 0
        elif not self._counted_below:
            self._count(size)

    def read_below(self, size: int) -> None:
        """Count bytes read by a stage."""
        self._count(size)

    def _count(self, size: int) -> None:
        self._size += size
        if self._size >= self._enough:
            self._heard = self._connection.now
            self._size = 0

    def pause(self) -> None:
        """Stop the client's time: reading is paused."""
        self._paused = self._connection.now

    def resume(self) -> None:
        """Resume the client's time."""
        if self._paused is None:
            return
        now = self._connection.now
        lost, self._paused = now - self._paused, None
        self._packet = min(now, self._packet + lost)
        self._heard = min(now, self._heard + lost)
        if self._overdue:
            self._overdue = False
            self._start_timer(max(_GRACE, self._packet + self._allowed - now))

    def _start_timer(self, delay: float) -> None:
        # A timer may outlive its connection, but not for the 27 hours of the longest keep alive.
        self._connection.start_timer(
            self._connection.timers, min(delay, _LONGEST_TIMER), self._deadline
        )

    def _deadline(self) -> None:
        """Close the client if it was silent for too long [MQTT-3.1.2-24]."""
        connection = self._connection
        if connection.ended:
            return
        if self._paused is not None:
            self._overdue = True
            return
        now = connection.now
        if connection.timers.lateness > _STANDSTILL:
            # Data that the client sent meanwhile was not read.
            self._packet = self._heard = now
        begun = connection.incomplete
        waits = begun or self._transport.get_extra_info("incomplete", default=False)
        remaining_seconds = (self._heard if waits else self._packet) + self._allowed - now
        if remaining_seconds > 0:
            self._start_timer(remaining_seconds)
        elif connection.unhandled:
            self._start_timer(_GRACE)
        else:
            _log.info(
                "keep alive timed out",
                client=connection.client_id,
                address=connection.address,
                incomplete=begun,
            )
            connection.kernel.tell(connection, Close("keep_alive"))
