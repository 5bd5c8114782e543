"""Counters of what the broker takes and gives, since its start.

They are moved by batch, never by message. What is counted by the journal (records, latency of
commits) stands in ``eventstore.log.journal_stats``, what actors do in ``actors.kernel``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Protocol

import structlog

from eventstore.log import Histogram
from protocol.mqtt import Acks, Packet, Publishes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


_log = structlog.get_logger("foldmq")

_LAG_SECONDS = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
_MINUTE = 60.0
_HELD_UP = 0.25
"""Seconds of a turn that are worth a line in the log."""
_WARN_EVERY = 60.0
_LAG_EVERY = 0.1
"""Seconds between two looks at the lag of the event loop."""


class LongestTurn:
    """The longest stretch for which the actors kept the event loop, in seconds."""

    __slots__ = ("_before", "_begun", "_now", "_warned")

    def __init__(self) -> None:
        self._now = self._before = 0.0
        """In this minute, and in the one before."""
        self._begun = 0.0
        self._warned = -_WARN_EVERY

    @property
    def recent(self) -> float:
        """The longest one of the last one to two minutes."""
        return max(self._now, self._before)

    def observe(self, seconds: float, now: float) -> None:
        """Take the longest stretch since the last call; ``now`` is monotonic."""
        if now - self._begun > _MINUTE:
            self._before = self._now if now - self._begun <= 2 * _MINUTE else 0.0
            self._now, self._begun = 0.0, now
        self._now = max(self._now, seconds)
        if seconds > _HELD_UP and now - self._warned >= _WARN_EVERY:
            self._warned = now
            _log.warning("event loop held up by one turn", seconds=round(seconds, 3))


class Counted(Protocol):
    """A connection whose packets are counted."""

    messages_in: int
    messages_out: int
    packets_in: int


class Counters:
    """What one broker counts; messages are indexed by their QoS."""

    __slots__ = (
        "accepted",
        "bytes_in",
        "bytes_out",
        "connects",
        "expired",
        "lag",
        "longest_turn",
        "most_clients",
        "most_connections",
        "packets_in",
        "packets_out",
        "publish_bytes_in",
        "publish_bytes_out",
        "received",
        "sent",
        "started_ms",
    )

    def __init__(self, started_ms: int) -> None:
        self.started_ms = started_ms
        """Unix time in milliseconds."""
        self.received = [0, 0, 0]
        """PUBLISH packets from clients."""
        self.sent = [0, 0, 0]
        """PUBLISH packets to clients, those that are sent again included."""
        self.publish_bytes_in = 0
        """Bytes of such packets, headers included."""
        self.publish_bytes_out = 0
        self.packets_in = 0
        """Packets of all types."""
        self.packets_out = 0
        self.bytes_in = 0
        """Bytes of the transports."""
        self.bytes_out = 0
        self.accepted = 0
        """Connections accepted."""
        self.connects = 0
        """CONNECT packets."""
        self.most_connections = 0
        """The most that were open at a time."""
        self.most_clients = 0
        """The most sessions that were connected at a time."""
        self.expired = 0
        """Sessions that expired."""
        self.lag = Histogram(_LAG_SECONDS)
        """Seconds by which the event loop came late to a timer."""
        self.longest_turn = LongestTurn()

    def took(self, connection: Counted, packets: Iterable[Packet]) -> None:
        """Count packets that a client sent."""
        count = 0
        for packet in packets:
            if type(packet) is Publishes:
                messages = len(packet)
                count += messages
                connection.messages_in += messages
                self.received[packet.qos] += messages
                self.publish_bytes_in += packet.size
            elif type(packet) is Acks:
                count += len(packet.packet_ids)
            else:
                count += 1
        connection.packets_in += count
        self.packets_in += count

    def gave(self, connection: Counted, qos: int, count: int, size: int) -> None:
        """Count messages on their way to a client: ``size`` bytes of PUBLISH packets."""
        connection.messages_out += count
        self.sent[qos] += count
        self.packets_out += count
        self.publish_bytes_out += size


async def watch_loop(counters: Counters, tell: Callable[[float], None]) -> None:
    """Measure, again and again, by how many seconds the event loop is late; ``tell`` of it."""
    while True:
        due = time.perf_counter() + _LAG_EVERY
        await asyncio.sleep(_LAG_EVERY)
        lag = max(0.0, time.perf_counter() - due)
        counters.lag.observe(lag)
        tell(lag)
