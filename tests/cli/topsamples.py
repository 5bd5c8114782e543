"""Sample answers of a broker to ``foldmq top``."""

from __future__ import annotations

from typing import Any

BOUNDS = [0.001, 0.002, 0.004, 0.008, 0.5]
STARTED_MS = 1_700_000_000_000


def status(
    *,
    seconds: float = 0,
    node: str = "n1",
    pid: int = 7,
    started_ms: int = STARTED_MS,
    received: list[int] | None = None,
    sent: list[int] | None = None,
    bytes_in: int = 0,
    records: int = 0,
    events: int = 0,
    commit: list[int] | None = None,
    dropped: dict[str, int] | None = None,
    trouble: list[str] | None = None,
    topics: list[tuple[str, float]] | None = None,
) -> dict[str, Any]:
    """A status; ``seconds`` after the first one."""
    return {
        "node": node,
        "software": "0.1.0",
        "pid": pid,
        "time_ms": STARTED_MS + 60_000 + round(seconds * 1000),
        "started_ms": started_ms,
        "position": 1,
        "ready": not trouble,
        "trouble": trouble or [],
        "connections": {"open": 3, "accepted": 5, "most": 4, "limit": 1000, "paused": 0},
        "sessions": {"total": 4, "connected": 3, "frozen": 1, "expired": 0, "limit": 1000},
        "subscriptions": 6,
        "retained": {"count": 2, "bytes": 64},
        "messages": {"in": received or [0, 0, 0], "out": sent or [0, 0, 0]},
        "publish_bytes": {"in": bytes_in, "out": 0},
        "packets": {"in": 0, "out": 0},
        "bytes": {"in": bytes_in, "out": 0},
        "dropped": dropped or {},
        "census": {
            "at_ms": 0,
            "inflight": 2,
            "releasing": 0,
            "inbound": 0,
            "queued": 40,
            "queued_bytes": 4096,
        },
        "log": {
            "records": records,
            "events": events,
            "entries": events,
            "bytes": 100,
            "durable": 1,
            "first": 1,
            "pending_records": 0,
            "pending_bytes": 0,
            "gated_bytes": 0,
            "trouble": None,
            "projected": 1,
            "stream_bytes": 1 << 20,
            "disk_free": 1 << 36,
        },
        "commit": histogram(commit),
        "lag": histogram(None),
        "record_events": histogram(None),
        "actors": {"total": 9, "by_type": {"session": 3}},
        "kernel": {"turns": 100, "handled": 1000, "mailbox_high_water": 12},
        "process": {"rss": 90 << 20, "cpu_s": 1.5},
        **({"topics": topics} if topics is not None else {}),
    }


def histogram(counts: list[int] | None) -> dict[str, Any]:
    """A histogram over BOUNDS."""
    counts = counts or [0] * (len(BOUNDS) + 1)
    return {"bounds": BOUNDS, "counts": counts, "sum": 1.0, "count": sum(counts)}


def actor(number: int, kind: str = "session", name: str = "pump", **changed: Any) -> dict[str, Any]:
    """A row of the list of actors."""
    return {
        "id": f"{kind}:{number}",
        "type": kind,
        "name": name,
        "client": name,
        "parent": "broker:1",
        "state": "connected",
        "mailbox": 0,
        "high_water": number,
        "handled": 10 * number,
        "last_active_ms": STARTED_MS,
        "busy_us": 1000 * number,
        "recent_us_per_s": 1000.0 * number,
        "recent_per_s": 5.0,
        **changed,
    }
