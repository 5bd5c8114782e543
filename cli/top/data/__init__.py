"""The connection and queries of ``foldmq top``."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.top.data.top_queries import Questions
    from cli.top.data.watched_broker import WatchedBroker
else:
    __getattr__ = front_door(
        __name__,
        {
            "top_queries": "Questions",
            "watched_broker": "WatchedBroker",
        },
    )

__all__ = ["Questions", "WatchedBroker"]
