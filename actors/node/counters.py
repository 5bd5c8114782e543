"""Counters of the broker since its start.

They are incremented per batch, never per message. The journal counts records and commit latencies
in ``eventstore.log.journal_stats``; the kernel counts the work of actors.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol

import structlog

from eventstore.log.journal_stats import Histogram
from eventstore.metric_types import by_qos, by_reason, counted
from protocol.mqtt.packets import Acks, Packet, Publishes

_log = structlog.get_logger("foldmq")

_LAG_SECONDS = (
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.125, 0.25, 0.5, 1.0, 2.5, 5.0,
)  # fmt: skip
_MINUTE = 60.0
_HELD_UP = 0.25
"""Duration in seconds from which a turn is logged."""
_WARN_EVERY = 60.0
_LAG_EVERY, _IDLE_LAG_EVERY = 0.1, 0.5
"""Seconds between two measurements of the lag of the event loop, and while no packets arrive."""


class LongestTurn:
    """The longest time in seconds that the actors held the event loop, and in processor time."""

    def __init__(self) -> None:
        self._now = self._before = 0.0
        """The longest times of the current minute, and of the previous one."""
        self._work = self._work_before = 0.0
        self._begun = 0.0
        self._warned = -_WARN_EVERY

    @property
    def recent(self) -> float:
        """The longest time of the last one to two minutes."""
        return max(self._now, self._before)

    @property
    def recent_work(self) -> float:
        """The longest processor time of the last one to two minutes."""
        return max(self._work, self._work_before)

    def observe(self, seconds: float, work: float, now: float) -> None:
        """Record the longest times since the last call; ``now`` is monotonic."""
        if now - self._begun > _MINUTE:
            is_next = now - self._begun <= 2 * _MINUTE
            self._before = self._now if is_next else 0.0
            self._work_before = self._work if is_next else 0.0
            self._now = self._work = 0.0
            self._begun = now
        self._now = max(self._now, seconds)
        self._work = max(self._work, work)
        if seconds > _HELD_UP and now - self._warned >= _WARN_EVERY:
            self._warned = now
            _log.warning(
                "one turn delayed the event loop",
                seconds=round(seconds, 3),
                processor_seconds=round(work, 3),
            )


class Counted(Protocol):
    """A connection whose packets are counted."""

    messages_in: int
    messages_out: int
    packets_in: int


def _none_by_qos() -> list[int]:
    return [0, 0, 0]


@dataclass(slots=True)
class Counters:
    """The counters of one broker; messages are indexed by their QoS."""

    started_ms: int
    """Unix time in milliseconds."""
    accepted: int = counted(
        "foldmq_connections_accepted_total", "Accepted connections.", "connections.accepted"
    )
    expired: int = counted("foldmq_sessions_expired_total", "Expired sessions.", "sessions.expired")
    received: list[int] = counted(
        "foldmq_messages_received_total",
        "PUBLISH packets from clients.",
        "messages.in",
        start=_none_by_qos,
        labels=("qos",),
        read=by_qos,
    )
    clock_jumps: int = counted(
        "foldmq_clock_jumps_total", "Jumps of the machine's clock since the start.", "clock.jumps"
    )
    sent: list[int] = counted(
        "foldmq_messages_sent_total",
        "PUBLISH packets to clients, including redeliveries.",
        "messages.out",
        start=_none_by_qos,
        labels=("qos",),
        read=by_qos,
    )
    replayed: int = counted(
        "foldmq_replay_messages_total", "Messages sent by replays.", "replays.messages"
    )
    publish_bytes_in: int = counted(
        "foldmq_publish_received_bytes_total",
        "Bytes of PUBLISH packets from clients.",
        "publish_bytes.in",
    )
    publish_bytes_out: int = counted(
        "foldmq_publish_sent_bytes_total",
        "Bytes of PUBLISH packets to clients.",
        "publish_bytes.out",
    )
    packets_in: int = counted(
        "foldmq_packets_received_total", "Packets of all types from clients.", "packets.in"
    )
    packets_out: int = counted(
        "foldmq_packets_sent_total", "Packets of all types to clients.", "packets.out"
    )
    bytes_in: int = counted("foldmq_received_bytes_total", "Bytes from clients.", "bytes.in")
    bytes_out: int = counted("foldmq_sent_bytes_total", "Bytes to clients.", "bytes.out")
    lag: Histogram = counted(
        "foldmq_loop_lag_seconds",
        "Delay of timers on the event loop.",
        "lag",
        kind="histogram",
        start=lambda: Histogram(_LAG_SECONDS),
    )
    reauthentications: Counter[str] = counted(
        "foldmq_reauthentications_total",
        "Re-authentications of connected clients (MQTT 5), by outcome.",
        "reauthentications",
        start=Counter,
        labels=("result",),
        read=by_reason("accepted", "refused"),
    )
    connects: int = 0
    """CONNECT packets."""
    most_connections: int = 0
    """The highest number of open connections."""
    most_clients: int = 0
    """The highest number of connected sessions."""
    longest_turn: LongestTurn = field(default_factory=LongestTurn)

    def count_received(self, connection: Counted, packets: Iterable[Packet]) -> None:
        """Count packets received from a client."""
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

    def count_sent(self, connection: Counted, qos: int, count: int, size: int) -> None:
        """Count messages sent to a client: ``size`` bytes of PUBLISH packets."""
        connection.messages_out += count
        self.sent[qos] += count
        self.packets_out += count
        self.publish_bytes_out += size


async def watch_loop(counters: Counters, tell: Callable[[float], None]) -> None:
    """Measure the lag of the event loop in seconds, periodically; pass it to ``tell``."""
    packets = -1
    while True:
        seconds = _IDLE_LAG_EVERY if packets == counters.packets_in else _LAG_EVERY
        packets = counters.packets_in
        due = time.perf_counter() + seconds
        await asyncio.sleep(seconds)
        lag = max(0.0, time.perf_counter() - due)
        counters.lag.observe(lag)
        tell(lag)
