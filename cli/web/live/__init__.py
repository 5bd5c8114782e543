"""The running broker for the web page: connection, samples and charts."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.web.live.cursors import Listed, Listings, Order
    from cli.web.live.log_link import LogLink
    from cli.web.live.samples import EVERY, Samples
    from cli.web.live.svg_charts import Chart, bars, chart
    from cli.web.live.topic_tails import TopicTails
else:
    __getattr__ = front_door(
        __name__,
        {
            "cursors": "Listed Listings Order",
            "log_link": "LogLink",
            "samples": "EVERY Samples",
            "svg_charts": "Chart bars chart",
            "topic_tails": "TopicTails",
        },
    )

__all__ = [
    "EVERY",
    "Chart",
    "Listed",
    "Listings",
    "LogLink",
    "Order",
    "Samples",
    "TopicTails",
    "bars",
    "chart",
]
