"""What a broker says of itself at a glance: counters and gauges, read in a fraction of a ms."""

from __future__ import annotations

import os
import resource
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.transports.handshakes import TlsStats

if TYPE_CHECKING:
    from actors.bridge.host import BridgeHost
    from actors.connection.admission import Admission
    from actors.inspection.log_storage import LogStorage
    from actors.maintenance.projector import Projector
    from actors.session.node_context import NodeContext
    from eventstore.log import Histogram

_PAGE = os.sysconf("SC_PAGE_SIZE")


@dataclass(frozen=True, slots=True)
class StatusSources:
    """What the status of a broker is read from."""

    node: NodeContext
    admission: Admission
    projector: Projector
    storage: LogStorage
    bridge: BridgeHost | None


def status(sources: StatusSources) -> dict[str, Any]:
    """Return what is known without looking at each session; see ``docs/inspector.md``.

    Times are Unix milliseconds, sizes bytes.
    """
    node, admission = sources.node, sources.admission
    counters, options, kernel = node.counters, node.options, node.kernel
    trouble = node.not_ready_reasons()
    return {
        "node": options.node,
        "software": node.software,
        "pid": os.getpid(),
        "time_ms": node.clock.time_ms(),
        "started_ms": counters.started_ms,
        "ready": not trouble,
        "trouble": trouble,
        "connections": {
            "open": len(admission.connections),
            "accepted": counters.accepted,
            "most": counters.most_connections,
            "limit": options.max_connections,
            "paused": len(node.paused),
            "unauthenticated": len(node.limits.unauthenticated),
            "unauthenticated_bytes": node.limits.unauthenticated.bytes,
        },
        "listeners": {name: node.limits.connections(name) for name in admission.listeners},
        "accepting": not any(acceptor.paused for acceptor in admission.acceptors),
        "accept_pauses": sum(acceptor.pauses for acceptor in admission.acceptors),
        "overload": node.limits.overload.reason,
        "refused": dict(node.limits.refused.counts),
        "denied": dict(node.permissions.refused.counts),
        "logins": _logins(admission),
        "tls": _tls(admission),
        "sessions": _sessions(node),
        "subscriptions": node.router.subscriptions,
        "retained": {"count": len(node.state.retained), "bytes": node.state.retained.size},
        "messages": {"in": [*counters.received], "out": [*counters.sent]},
        "publish_bytes": {"in": counters.publish_bytes_in, "out": counters.publish_bytes_out},
        "packets": {"in": counters.packets_in, "out": counters.packets_out},
        "bytes": {"in": counters.bytes_in, "out": counters.bytes_out},
        "dropped": dict(node.dropped),
        "log": _log(sources),
        "bridge": _bridge(sources),
        "lag": histogram(counters.lag),
        "actors": {"total": len(kernel), "by_type": _by_type(node)},
        "kernel": {
            "turns": kernel.turns,
            "handled": kernel.handled,
            "mailbox_high_water": kernel.high_water,
            "cuts": kernel.cuts,
            "parts": kernel.parts,
            "longest_turn_s": round(counters.longest_turn.recent, 6),
        },
        "process": process(),
        **_journal(node),
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


def _sessions(node: NodeContext) -> dict[str, int]:
    table = node.state.sessions
    return {
        "total": len(table),
        "connected": node.directory.attached,
        "passive": len(table) - len(table.live),
        "expired": node.counters.expired,
        "limit": node.options.max_sessions,
    }


def _journal(node: NodeContext) -> dict[str, Any]:
    if not node.recovered:
        return {"position": None, "commit": None, "record_events": None}
    stats = node.journal.stats
    return {
        "position": node.journal.last,
        "commit": histogram(stats.commit),
        "record_events": histogram(stats.record_events),
    }


def _log(sources: StatusSources) -> dict[str, Any] | None:
    node = sources.node
    if not node.recovered:
        return None
    journal, stats, storage = node.journal, node.journal.stats, sources.storage
    archived = node.state.archived
    return {
        "records": stats.records,
        "events": stats.events,
        "entries": stats.entries,
        "bytes": stats.bytes,
        "durable": journal.durable,
        "first": node.log.first,
        "pending_records": len(journal.pending),
        "pending_bytes": journal.pending_bytes,
        "gated_bytes": journal.gated,
        "trouble": node.writer.outage,
        "projected": sources.projector.marked,
        "archived": archived.said.through if archived is not None else 0,
        "stream_bytes": storage.stream_bytes,
        "disk_free": storage.disk_free,
    }


def _logins(admission: Admission) -> list[tuple[str, str, int]]:
    """Return how many logins had which end: method, result, number."""
    counts = admission.authenticator.counts
    return [(method, result, count) for (method, result), count in counts.items()]


def _tls(admission: Admission) -> dict[str, Any]:
    """Return what the TLS handshakes came to; one pool makes those of all listeners."""
    stacks = (listener.options.stack for listener in admission.listeners.values())
    pool = next((one.handshakes for one in stacks if one.handshakes is not None), None)
    stats = pool.stats if pool is not None else TlsStats()
    return {
        "handshakes": stats.handshakes,
        "resumed": stats.resumed,
        "failed": dict(stats.failed),
        "cpu_s": round(stats.cpu_seconds, 3),
        "waiting": pool.waiting if pool is not None else 0,
    }


def _bridge(sources: StatusSources) -> dict[str, Any] | None:
    """Return how the bridge to NATS is; None if there is none."""
    bridge = sources.bridge
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
        "through": sources.node.state.bridged or 0,
    }


def _by_type(node: NodeContext) -> dict[str, int]:
    return {kind.__name__.lower(): count for kind, count in node.kernel.population.items()}
