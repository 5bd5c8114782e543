"""Reads the status of a broker: its counters, and the values that ``status_metrics`` declares.

Reading it takes a fraction of a millisecond.
"""

from __future__ import annotations

import os
import resource
from typing import TYPE_CHECKING, Any

from actors.inspection.process_memory import resident_and_peak
from actors.inspection.status_metrics import BRIDGE_VALUES, BROKER_VALUES, LOG_VALUES
from actors.transports.handshakes import TlsStats
from eventstore.metric_types import put_counters, set_path
from projections.log_proof import doubt_object

if TYPE_CHECKING:
    from collections.abc import Iterable

    from actors.connection.admission import Admission
    from actors.inspection.status_metrics import StatusSources, StatusValue
    from actors.session.node_context import NodeContext
    from actors.transports.handshakes import Handshakes

_MAX_DOUBTS = 16


def status(sources: StatusSources) -> dict[str, Any]:
    """Return the status, without iterating over sessions; see ``docs/nats-api.md``.

    Times are Unix milliseconds, sizes bytes.
    """
    node, admission = sources.node, sources.admission
    tls, counters = _tls_pool(admission), node.counters
    found: dict[str, Any] = {
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
    _put_values(found, BROKER_VALUES, sources)
    put_counters(found, counters)
    found["clock"]["last"] = _last_jump(node)
    found["clock"]["held_ms"] = max(0, node.held.ms) if node.held is not None else 0
    found["connections"]["most"] = counters.most_connections
    found["actors"]["total"] = len(node.kernel)
    put_counters(found, TlsStats() if tls is None else tls.stats)
    found["tls"]["waiting"] = 0 if tls is None else tls.waiting
    if node.recovered:
        _put_values(found, LOG_VALUES, sources)
        put_counters(found, node.journal.stats)
        doubts = node.state.proof.doubts
        found["log"] |= {
            "trouble": node.writer.outage,
            "store_damage": node.writer.damage,
            "commit_delay": node.options.commit_delay,
            "projected": sources.projector.marked,
            "not_proven": [doubt_object(one) for one in doubts[-_MAX_DOUBTS:]],
        }
        found["position"] = node.journal.last
    else:
        found |= dict.fromkeys(("log", "position", "commit", "record_events"))
    found["bridge"] = None
    if sources.bridge is not None:
        stats = sources.bridge.stats
        found["bridge"] = {
            "probes": stats.probes,
            "acknowledged": stats.acknowledged,
            "through": node.state.bridged or 0,
        }
        _put_values(found, BRIDGE_VALUES, sources)
        put_counters(found, stats)
    return found


def _last_jump(node: NodeContext) -> dict[str, Any] | None:
    """Return the last jump of the clock since the start; None: there was none."""
    if node.last_jump is None:
        return None
    event, at, steady_ms = node.last_jump
    age_ms = node.clock.steady_ms() - steady_ms
    return {"ms": event.ms, "seen": event.seen, "position": at, "age_ms": age_ms}


def _put_values(
    found: dict[str, Any], values: Iterable[StatusValue], sources: StatusSources
) -> None:
    for one in values:
        if one.value is not None:
            set_path(found, one.metric.path, one.value(sources))


def process() -> dict[str, Any]:
    """Return resident memory (bytes) and processor time (seconds) of this process."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return {"rss": resident_and_peak()[0], "cpu_s": round(used.ru_utime + used.ru_stime, 3)}


def _tls_pool(admission: Admission) -> Handshakes | None:
    """Return the TLS handshakes of all listeners; None if no listener has TLS."""
    stacks = (listener.options.stack for listener in admission.listeners.values())
    return next((one.handshakes for one in stacks if one.handshakes is not None), None)
