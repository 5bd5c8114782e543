"""What a broker says of itself at a glance: counters and gauges, read in a fraction of a ms."""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Any

from actors.transports.handshakes import TlsStats

if TYPE_CHECKING:
    from actors.broker import Broker
    from eventstore.log import Histogram

_PAGE = os.sysconf("SC_PAGE_SIZE")


def status(broker: Broker) -> dict[str, Any]:
    """Return what is known without looking at each session; see ``docs/inspector.md``.

    Times are Unix milliseconds, sizes bytes.
    """
    meters, options, kernel = broker.meters, broker.options, broker.kernel
    trouble = broker.trouble()
    return {
        "node": options.node,
        "software": broker.software,
        "pid": os.getpid(),
        "time_ms": broker.clock.time_ms(),
        "started_ms": meters.started_ms,
        "ready": not trouble,
        "trouble": trouble,
        "connections": {
            "open": len(broker.connections),
            "accepted": meters.accepted,
            "most": meters.most_connections,
            "limit": options.max_connections,
            "paused": len(broker.paused),
            "unauthenticated": len(broker.guard.unauthenticated),
            "unauthenticated_bytes": broker.guard.unauthenticated.bytes,
        },
        "listeners": {name: broker.guard.connections(name) for name in broker.door.listeners},
        "accepting": not any(acceptor.paused for acceptor in broker.door.acceptors),
        "accept_pauses": sum(acceptor.pauses for acceptor in broker.door.acceptors),
        "overload": broker.guard.overload.reason,
        "refused": dict(broker.guard.refused.counts),
        "denied": dict(broker.permissions.refused.counts),
        "logins": _logins(broker),
        "tls": _tls(broker),
        "sessions": _sessions(broker),
        "subscriptions": broker.router.subscriptions,
        "retained": {"count": len(broker.node.retained), "bytes": broker.node.retained.size},
        "messages": {"in": [*meters.received], "out": [*meters.sent]},
        "publish_bytes": {"in": meters.publish_bytes_in, "out": meters.publish_bytes_out},
        "packets": {"in": meters.packets_in, "out": meters.packets_out},
        "bytes": {"in": meters.bytes_in, "out": meters.bytes_out},
        "dropped": dict(broker.dropped),
        "log": _log(broker),
        "bridge": _bridge(broker),
        "lag": histogram(meters.lag),
        "actors": {"total": len(kernel), "by_type": _by_type(broker)},
        "kernel": {
            "turns": kernel.turns,
            "handled": kernel.handled,
            "mailbox_high_water": kernel.high_water,
            "cuts": kernel.cuts,
            "parts": kernel.parts,
            "longest_turn_s": round(meters.longest_turn.recent, 6),
        },
        "process": process(),
        **_journal(broker),
    }


def histogram(found: Histogram) -> dict[str, Any]:
    """Return a histogram as a JSON object; its counts are not cumulative."""
    return {
        "bounds": found.bounds,
        "counts": found.counts,
        "sum": round(found.sum, 6),
        "count": found.count,
    }


def process() -> dict[str, Any]:
    """Return resident memory (bytes) and processor time (seconds) of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    if sys.platform == "linux":
        with open("/proc/self/statm", "rb", buffering=0) as statm:  # noqa: PTH123 - the fastest way
            rss = int(statm.read().split()[1]) * _PAGE
    else:
        rss = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return {"rss": rss, "cpu_s": round(used.ru_utime + used.ru_stime, 3)}


def _sessions(broker: Broker) -> dict[str, int]:
    table = broker.node.sessions
    return {
        "total": len(table),
        "connected": broker.attached,
        "passive": len(table) - len(table.live),
        "expired": broker.meters.expired,
        "limit": broker.options.max_sessions,
    }


def _journal(broker: Broker) -> dict[str, Any]:
    if not broker.recovered:
        return {"position": None, "commit": None, "record_events": None}
    stats = broker.journal.stats
    return {
        "position": broker.journal.last,
        "commit": histogram(stats.commit),
        "record_events": histogram(stats.record_events),
    }


def _log(broker: Broker) -> dict[str, Any] | None:
    if not broker.recovered:
        return None
    journal, stats, storage = broker.journal, broker.journal.stats, broker.storage
    archived = broker.node.archived
    return {
        "records": stats.records,
        "events": stats.events,
        "entries": stats.entries,
        "bytes": stats.bytes,
        "durable": journal.durable,
        "first": broker.log.first,
        "pending_records": len(journal.pending),
        "pending_bytes": journal.pending_bytes,
        "gated_bytes": journal.gated,
        "trouble": broker.writer.outage,
        "projected": broker.projector.marked,
        "archived": archived.said.through if archived is not None else 0,
        "stream_bytes": storage.stream_bytes,
        "disk_free": storage.disk_free,
    }


def _logins(broker: Broker) -> list[tuple[str, str, int]]:
    """Return how many logins had which end: method, result, number."""
    counts = broker.authenticator.counts
    return [(method, result, count) for (method, result), count in counts.items()]


def _tls(broker: Broker) -> dict[str, Any]:
    """Return what the TLS handshakes came to; one pool makes those of all listeners."""
    stacks = (listener.options.stack for listener in broker.door.listeners.values())
    pool = next((one.handshakes for one in stacks if one.handshakes is not None), None)
    stats = pool.stats if pool is not None else TlsStats()
    return {
        "handshakes": stats.handshakes,
        "resumed": stats.resumed,
        "failed": dict(stats.failed),
        "cpu_s": round(stats.cpu_seconds, 3),
        "waiting": pool.waiting if pool is not None else 0,
    }


def _bridge(broker: Broker) -> dict[str, Any] | None:
    """Return how the bridge to NATS is; None if there is none."""
    bridge = broker.bridge
    if bridge is None:
        return None
    stats = bridge.stats
    return {
        "connected": stats.connected,
        "filters": len(bridge.interest),
        "subscriptions": bridge.interest.subjects,
        "sent": stats.sent,
        "offered": stats.offered,
        "probes": stats.probes,
        "received": stats.received,
        "acknowledged": stats.acknowledged,
        "through": broker.node.bridged or 0,
    }


def _by_type(broker: Broker) -> dict[str, int]:
    return {kind.__name__.lower(): count for kind, count in broker.kernel.population.items()}
