"""The statuses of the brokers of several logs, added up."""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eventstore.datadir import DataDir

Status = dict[str, Any]

_SUMS = {
    "connections": ("open", "paused"),
    "sessions": ("total", "connected", "frozen", "logs"),
    "census": ("in_flight", "releasing", "queued", "queued_bytes"),
    "process": ("rss", "cpu_s"),
    "actors": ("total",),
}
_MEMORY = {
    "code": "programs and libraries",
    "runtime": "Python and settings",
    "connections": "connections",
    "sessions": "sessions",
    "subscriptions": "subscriptions",
    "retained": "retained messages",
    "queues": "queued and unacknowledged messages",
    "messages": "recent messages (at most 64 MiB)",
    "routes": "receivers of topics",
    "disk": "output and records that wait for the disk",
    "clients": "counters of clients",
    "rest": "free or not known",
}
"""What the memory of a broker is for, as in its status."""
_LOG_SUMS = ("pending_bytes", "gated_bytes")


def add_free_space(found: Sequence[Status], directory: Path | None) -> None:
    """Add the free space of the disk where the data directory is on this machine.

    A process that is one of several does not look at the disk.
    """
    if directory is None:
        return
    with contextlib.suppress(OSError):
        free = DataDir(directory).free_bytes()
        for status in found:
            if status["log"] is not None and status["log"].get("disk_free") is None:
                status["log"]["disk_free"] = free


def added_up(found: Sequence[Status]) -> Status:
    """Return the figures of some logs added up; the status of a single one is its own.

    The retained messages are those of the log that has most: each has all of them. Limits are the
    lowest of one log. A log that is being read has no figures of its own: if all are, there are
    none.
    """
    if len(found) == 1:
        return found[0]
    total: Status = {
        "ready": all(one["ready"] for one in found),
        "subscriptions": sum(one["subscriptions"] for one in found),
        "retained": max((one["retained"] for one in found), key=lambda one: one["count"]),
        "messages": {
            way: [
                sum(by_qos) for by_qos in zip(*(one["messages"][way] for one in found), strict=True)
            ]
            for way in ("in", "out")
        },
        "kernel": {"mailbox_high_water": max(one["kernel"]["mailbox_high_water"] for one in found)},
    }
    for part, names in _SUMS.items():
        # An earlier version does not tell how many sessions stand for other logs.
        total[part] = {name: sum(one[part].get(name, 0) for one in found) for name in names}
    for part in ("connections", "sessions"):
        total[part]["limit"] = min(
            (limit for one in found if (limit := one[part].get("limit"))), default=None
        )
    dropped: Counter[str] = Counter()
    for one in found:
        dropped.update(one["dropped"])
    total["dropped"] = dict(dropped)
    memory: Counter[str] = Counter()
    for one in found:
        memory.update(one.get("memory") or {})
    total["memory"] = dict(memory)
    total["destinations"] = [
        {**row, "log": status["node"]}
        for status in found
        for row in status.get("destinations") or ()
    ]
    total["log"] = _logs([one["log"] for one in found if one["log"] is not None])
    return total


def memory_parts(found: Mapping[str, Any]) -> list[tuple[str, int]]:
    """Return what the memory of a broker is for and how many bytes, the largest part first.

    Parts of less than a hundredth are left out; empty if the broker does not say.
    """
    memory = found.get("memory") or {}
    least = sum(memory.values()) // 100
    parts = [(_MEMORY.get(name, name), size) for name, size in memory.items() if size > least]
    return sorted(parts, key=lambda part: -part[1])


def _logs(logs: Sequence[Status]) -> Status | None:
    if not logs:
        return None
    sizes = [one.get("stream_bytes") for one in logs]
    free = [one.get("disk_free") for one in logs]
    return {
        **{name: sum(one[name] for one in logs) for name in _LOG_SUMS},
        "limit": sum(one.get("limit") or 0 for one in logs),
        "stream_bytes": None if None in sizes else sum(size or 0 for size in sizes),
        "disk_free": min((one for one in free if one is not None), default=None),
    }
