"""Problems of the broker itself in sentences: its log, the disk, replicas, limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cli.common import text
from cli.diagnosis.advice import Advice
from cli.diagnosis.next_commands import SERVER_LOG
from eventstore.nats import LOG_STREAM_PREFIX, read_info
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from nats.aio.client import Client

_WEEK: Final = 7 * 86_400.0
_HOUR_MS: Final = 3_600_000
_LITTLE: Final = 10**9
"""Free bytes below which the disk is nearly full."""
_MIN_SECONDS: Final = 60.0
"""Minimum uptime in seconds for a known rate of writing."""


def advise_on_broker(status: Mapping[str, Any], behind: Iterable[str]) -> Iterator[Advice]:
    """Yield the problems of a broker, without those of the disk.

    ``status`` is its reply to ``status``, ``behind`` describes the replicas of the log that are
    behind.
    """
    for reason in status["trouble"]:
        yield Advice(
            "problem",
            "the broker",
            "does not serve clients fully",
            text.escaped(str(reason), 300),
            "see its log messages",
            SERVER_LOG,
        )
    if status.get("overload"):
        yield Advice(
            "problem",
            "the broker",
            "is overloaded",
            text.escaped(str(status["overload"]), 300),
            "clients cause more work than the processor or the disk can handle",
            "foldmq top",
        )
    up = status["time_ms"] - status["started_ms"]
    if status.get("crashed_ms") and up < _HOUR_MS:
        lasted = text.duration(status["started_ms"] - status["crashed_ms"])
        yield Advice(
            "warning",
            "the broker",
            "started after a crash",
            f"it started {text.duration(up)} ago; the previous run did not end cleanly, its last "
            f"write was {lasted} before that",
            "the broker failed or was killed (kill -9, out of memory), or the machine stopped; "
            "everything acknowledged is in the log",
            SERVER_LOG,
        )
    for line in behind:
        yield Advice(
            "problem",
            "the log",
            "has a replica that is behind",
            line,
            "its server is down, unreachable or slow; until it has caught up, fewer failures are "
            "survived",
            "nats server report jetstream",
        )


def advise_on_disk(
    statuses: Iterable[Mapping[str, Any]], limits: Iterable[Mapping[str, Any]]
) -> Iterator[Advice]:
    """Yield advice if the disk is nearly full, or will be before the logs on it are cut.

    ``statuses`` and ``limits`` are the replies to ``status`` and ``problems`` of the brokers whose
    logs are on the disk.
    """
    free: int | None = None
    total, needed = 0.0, 0.0
    for status, limit in zip(statuses, limits, strict=True):
        log, seconds = status["log"], (status["time_ms"] - status["started_ms"]) / 1000
        if log.get("disk_free") is None:
            return
        free = log["disk_free"]
        rate = log["bytes"] / seconds if seconds >= _MIN_SECONDS else 0.0
        total += rate
        needed += growth(rate, log.get("stream_bytes") or 0, limit)
    if free is None:
        return
    evidence = f"{text.size(free)} are free"
    if total:
        evidence += f"; the log grows by {text.size(round(total * 3600))} an hour"
    left = free / total if needed > free else None
    if left is not None:
        evidence += f": full in {text.duration(round(left * 1000))}"
    if free < _LITTLE or (left is not None and left < _WEEK):
        urgent = free < _LITTLE or (left is not None and left < _WEEK / 7)
        yield Advice(
            "problem" if urgent else "warning",
            "the disk",
            "runs out",
            evidence,
            "the log is kept longer than the disk has room for (settings keep, keep_bytes); on a "
            "full disk nothing is acknowledged",
            "foldmq log usage",
        )


def growth(rate: float, held: int, limits: Mapping[str, Any]) -> float:
    """Return the bytes by which a log will still grow; infinite if it is not cut.

    ``held`` are the bytes of the log, ``rate`` is in bytes per second.
    """
    if rate <= 0:
        return 0.0
    most = float("inf")
    if not limits.get("keep_until_archived"):
        if limits.get("keep_s"):
            most = rate * limits["keep_s"]
        if limits.get("keep_bytes"):
            most = min(most, float(limits["keep_bytes"]))
    return max(0.0, most - held)


async def lagging_replicas(client: Client, node: str) -> list[str]:
    """Return a sentence for each replica of the log that is behind, and for a missing leader."""
    stream = LOG_STREAM_PREFIX + node
    try:
        info = await read_info(client, stream)
    except FoldmqError as error:
        return [str(error)]
    cluster = info.get("cluster") or {}
    wanted = (info.get("config") or {}).get("num_replicas", 1)
    found = []
    if wanted > 1 and not cluster.get("leader"):
        found.append(f"stream {stream} has no leader: nothing is acknowledged")
    for replica in cluster.get("replicas") or ():
        name = text.escaped(str(replica.get("name")))
        lag = replica.get("lag") or 0
        if replica.get("offline"):
            found.append(f"the replica on server {name} is offline, {lag:,} records behind")
        elif not replica.get("current", True):
            found.append(f"the replica on server {name} is {lag:,} records behind")
    return found
