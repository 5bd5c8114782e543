"""Counters of what the broker takes and gives, since its start.

They are moved by batch, never by message. What is counted by the journal (records, latency of
commits) stands in ``eventstore.stats``, what actors do in ``actors.kernel``.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from eventstore.stats import Histogram
from protocol.packets import Acks, Packet, Publishes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from actors.connection import Connection

_LAG_SECONDS = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
_LAG_EVERY = 0.1
"""Seconds between two looks at the lag of the event loop."""


class Meters:
    """What one broker counts; messages are indexed by their QoS."""

    __slots__ = (
        "accepted",
        "bytes_in",
        "bytes_out",
        "connects",
        "expired",
        "lag",
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

    def took(self, connection: Connection, packets: Iterable[Packet]) -> None:
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
        self.packets_in += count

    def gave(self, connection: Connection, qos: int, count: int, size: int) -> None:
        """Count messages on their way to a client: ``size`` bytes of PUBLISH packets."""
        connection.messages_out += count
        self.sent[qos] += count
        self.packets_out += count
        self.publish_bytes_out += size


async def watch_loop(meters: Meters, tell: Callable[[float], None]) -> None:
    """Measure, again and again, by how many seconds the event loop is late; ``tell`` of it."""
    while True:
        due = time.perf_counter() + _LAG_EVERY
        await asyncio.sleep(_LAG_EVERY)
        lag = max(0.0, time.perf_counter() - due)
        meters.lag.observe(lag)
        tell(lag)
