"""Reads the status of a broker: its counters, and the values that ``status_metrics`` declares.

Reading it takes a fraction of a millisecond.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Any, Final

from actors.inspection.status_metrics import BRIDGE_VALUES, BROKER_VALUES, LOG_VALUES
from actors.transports.handshakes import TlsStats
from eventstore.format.destination_events import NATS_DESTINATION
from eventstore.metric_types import put_counters, set_path
from projections.log_proof import doubt_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.connection.admission import Admission
    from actors.inspection.status_metrics import StatusValue
    from actors.inspection.status_sources import StatusSources
    from actors.session.node_context import NodeContext
    from actors.transports.handshakes import Handshakes
    from projections.state.session_table import OutstandingTotals

_MAX_DOUBTS = 16


def status(sources: StatusSources) -> dict[str, Any]:
    """Return the status, without iterating over sessions; see ``docs/nats-api.md``.

    Times are Unix milliseconds, sizes bytes.
    """
    node, admission = sources.node, sources.admission
    tls, counters = _tls_pool(admission), node.counters
    answer: dict[str, Any] = {
        "node": node.options.node,
        "epoch": node.state.epoch,
        "software": node.software,
        "pid": os.getpid(),
        "time_ms": node.clock.time_ms(),
        "started_ms": counters.started_ms,
        "crashed_ms": node.crashed_ms or None,
        "off_ms": node.off_ms if node.crashed_ms else None,
        "trouble": node.not_ready_reasons(),
        "overload": node.limits.overload.reason,
        "reload": node.reload._asdict() if node.reload is not None else None,
        "certificates": node.certificates,
        "process": process(),
    }
    _put_values(answer, BROKER_VALUES, sources)
    put_counters(answer, counters)
    answer["clock"]["last"] = _last_jump(node)
    answer["clock"]["held_ms"] = max(0, node.held.ms) if node.held is not None else 0
    answer["connections"]["most"] = counters.most_connections
    answer["actors"]["total"] = len(node.kernel)
    put_counters(answer, TlsStats() if tls is None else tls.stats)
    answer["tls"]["waiting"] = 0 if tls is None else tls.waiting
    if node.recovered:
        _put_values(answer, LOG_VALUES, sources)
        put_counters(answer, node.journal.stats)
        doubts = node.state.proof.doubts
        answer["log"] |= {
            "trouble": node.writer.outage,
            "store_damage": node.writer.damage,
            "damage": _record_damage(node),
            "commit_delay": node.options.commit_delay,
            "projected": sources.projector.marked,
            "encryption": sources.storage.encryption,
            "unsure": node.state.unsure_state(),
            "not_proven": [doubt_object(doubt) for doubt in doubts[-_MAX_DOUBTS:]],
        }
        sealing = node.sealing
        answer["erasures"]["trouble"] = sealing.trouble if sealing is not None else ""
        answer["position"] = node.journal.last
    else:
        answer |= dict.fromkeys(("log", "position", "commit", "record_events", "erasures"))
    answer["other_logs"] = node.exchange.lags if node.exchange is not None else []
    answer["destinations"] = sources.destinations() if node.recovered else []
    answer["bridge"] = None
    if sources.bridge is not None:
        stats = sources.bridge.stats
        cursor = node.state.destinations.get(NATS_DESTINATION)
        answer["bridge"] = {
            "probes": stats.probes,
            "acknowledged": stats.acknowledged,
            "through": cursor.through if cursor is not None else 0,
        }
        _put_values(answer, BRIDGE_VALUES, sources)
        put_counters(answer, stats)
    return answer


def _record_damage(node: NodeContext) -> str | None:
    """Return which record of the log is damaged, and how; None: none is known."""
    damaged = node.damaged
    if damaged is None or damaged.sequence < node.log.first:  # it was cut off
        return None
    return f"record {damaged.sequence} {damaged.what}"


def _last_jump(node: NodeContext) -> dict[str, Any] | None:
    """Return the last jump of the clock since the start; None: there was none."""
    if node.last_jump is None:
        return None
    event, at, steady_ms = node.last_jump
    age_ms = node.clock.steady_ms() - steady_ms
    return {"ms": event.ms, "seen": event.seen, "position": at, "age_ms": age_ms}


def _put_values(
    answer: dict[str, Any], values: Iterable[StatusValue], sources: StatusSources
) -> None:
    for value in values:
        if value.value is not None:
            set_path(answer, value.metric.path, value.value(sources))


def process() -> dict[str, Any]:
    """Return resident memory (bytes) and processor time (seconds) of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"rss": resident_and_peak()[0], "cpu_s": round(used.ru_utime + used.ru_stime, 3)}


def _tls_pool(admission: Admission) -> Handshakes | None:
    """Return the TLS handshakes of all listeners; None if no listener has TLS."""
    stacks = (listener.options.stack for listener in admission.listeners.values())
    return next((stack.handshakes for stack in stacks if stack.handshakes is not None), None)


# What the memory of a broker is for: measured where the system says so, otherwise estimated.
#
# The sizes of objects are those of a benchmark (docs/operations.md), times their number: nothing is
# iterated over. What the estimates do not explain is given as the rest, so that the sum is always
# the resident memory.

_PAGE = os.sysconf("SC_PAGE_SIZE")
_MAXRSS_UNIT = 1 if sys.platform == "darwin" else 1024

_CONNECTION: Final = 4_000
"""Bytes of a connection, without TLS."""
_SESSION: Final = 2_500
"""Bytes of a session that is connected or has work, with its actor."""
_FROZEN: Final = 420
"""Bytes of an offline session without work."""
_SUBSCRIPTION: Final = 700
"""Bytes of a subscription, with its place in the index of filters."""
_RETAINED: Final = 500
"""Bytes of a retained message without its payload, with its place in the index of topics."""
_QUEUED: Final = 16
"""Bytes of a queued message: its position. Its payload is in the log."""
_UNACKNOWLEDGED: Final = 250
_ROUTE: Final = 350
"""Bytes of the cached receivers of a topic, without its name."""
_HISTORY: Final = 700
"""Bytes of the history of a client."""


def resident() -> tuple[int, int] | None:
    """Return the resident bytes of this process, and those of files: programs and libraries.

    None where the system does not say.
    """
    if sys.platform != "linux":
        return None
    with open("/proc/self/statm", "rb", buffering=0) as statm:  # noqa: PTH123 - the fastest way
        _, rss, shared, *_ = statm.read().split()
    return int(rss) * _PAGE, int(shared) * _PAGE


def resident_and_peak() -> tuple[int, int]:
    """Return the resident bytes of this process and their peak since it started.

    Both are the peak where the system says no more.
    """
    sizes, peak = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
    return (peak, peak) if sizes is None else (sizes[0], max(sizes[0], peak))


def own_bytes() -> int:
    """Return the resident bytes of this process without files; 0 where the system does not say."""
    sizes = resident()
    return sizes[0] - sizes[1] if sizes is not None else 0


def memory_use(sources: StatusSources, totals: OutstandingTotals) -> dict[str, int] | None:
    """Return the resident bytes by purpose; their sum is the resident memory.

    ``totals`` are the messages of all sessions that wait. None where the system does not say.
    """
    sizes = resident()
    if sizes is None:
        return None
    rss, files = sizes
    node, retained = sources.node, sources.node.state.retained
    sessions, routes = node.state.sessions, node.router.routes
    live = len(sessions.live)
    unacknowledged = totals.inflight + totals.releasing + totals.inbound
    parts = {
        "connections": _CONNECTION * len(sources.admission.connections),
        "sessions": _SESSION * live + _FROZEN * (len(sessions) - live),
        "subscriptions": _SUBSCRIPTION * node.router.subscriptions,
        "retained": retained.size + _RETAINED * len(retained),
        "queues": _QUEUED * totals.queued + _UNACKNOWLEDGED * unacknowledged,
        "messages": node.messages.size,
        "routes": routes.size + _ROUTE * len(routes),
        "disk": node.journal.pending_bytes + node.journal.gated if node.recovered else 0,
        "clients": _HISTORY * len(node.clients),
    }
    unexplained = rss - files - sum(parts.values())
    # State also takes memory that became free after the start.
    runtime = max(0, min(sources.baseline, unexplained))
    return {"code": files, "runtime": runtime, **parts, "rest": unexplained - runtime}
