"""The connection and queries of ``foldmq top``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.top.data.top_queries import TopQueries, broker_of_log
    from cli.top.data.watched_broker import WatchedBroker
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "top_queries": "TopQueries broker_of_log",
            "watched_broker": "WatchedBroker",
        },
    )

__all__ = ["TopQueries", "WatchedBroker", "broker_of_log"]
