"""The audit of the logs of one broker beside each other: what one owes to another.

``broker_logs`` finds the logs that belong together, ``log_comparison`` compares them, with
``projections.verification.exchange_audit``. This is plain Python that reads the logs side by side:
each log in a task of its own if Spark is used, and in this process otherwise.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.audit.exchange.broker_logs import BrokerLogs, find_brokers
    from spark.audit.exchange.log_comparison import (
        Compared,
        compare_in_spark,
        compare_logs,
        readable,
    )
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "broker_logs": "BrokerLogs find_brokers",
            "log_comparison": "Compared compare_in_spark compare_logs readable",
        },
    )

__all__ = ["BrokerLogs", "Compared", "compare_in_spark", "compare_logs", "find_brokers", "readable"]
