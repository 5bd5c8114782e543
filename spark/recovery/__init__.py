"""The recovery check: whether a restarted broker has the state of its log."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.recovery.recovery_job import (
        BrokerStart,
        NodeRecovery,
        RecoveryOutcome,
        recovery_check,
    )
    from spark.recovery.session_check import RecoveryFinding
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "recovery_job": "BrokerStart NodeRecovery RecoveryOutcome recovery_check",
            "session_check": "RecoveryFinding",
        },
    )

__all__ = ["BrokerStart", "NodeRecovery", "RecoveryFinding", "RecoveryOutcome", "recovery_check"]
