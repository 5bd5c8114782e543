"""The status of a broker: counters, gauges, and their Prometheus metrics."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.inspection.status.broker_status import status
    from actors.inspection.status.log_storage import LogStorage
    from actors.inspection.status.process_memory import (
        memory_use,
        own_bytes,
        resident_and_peak,
    )
    from actors.inspection.status.status_metrics import (
        DROPPED,
        METRICS,
        StatusSources,
        log_sessions,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "broker_status": "status",
            "log_storage": "LogStorage",
            "process_memory": "memory_use own_bytes resident_and_peak",
            "status_metrics": "DROPPED METRICS StatusSources log_sessions",
        },
    )

__all__ = [
    "DROPPED",
    "METRICS",
    "LogStorage",
    "StatusSources",
    "log_sessions",
    "memory_use",
    "own_bytes",
    "resident_and_peak",
    "status",
]
