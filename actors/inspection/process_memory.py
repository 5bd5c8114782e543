"""What the memory of a broker is for: measured where the system says so, otherwise estimated.

The sizes of objects are those of a benchmark (docs/operations.md), times their number: nothing is
iterated over. What the estimates do not explain is given as the rest, so that the sum is always the
resident memory.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from actors.inspection.status_metrics import StatusSources
    from projections.state.session_table import OutstandingTotals

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
    found, peak = resident(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * _MAXRSS_UNIT
    return (peak, peak) if found is None else (found[0], max(found[0], peak))


def own_bytes() -> int:
    """Return the resident bytes of this process without files; 0 where the system does not say."""
    found = resident()
    return found[0] - found[1] if found is not None else 0


def memory_use(sources: StatusSources, totals: OutstandingTotals) -> dict[str, int] | None:
    """Return the resident bytes by purpose; their sum is the resident memory.

    ``totals`` are the messages of all sessions that wait. None where the system does not say.
    """
    found = resident()
    if found is None:
        return None
    rss, files = found
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
    left = rss - files - sum(parts.values())
    # State also takes memory that became free after the start.
    runtime = max(0, min(sources.baseline, left))
    return {"code": files, "runtime": runtime, **parts, "rest": left - runtime}
