"""The running broker for the web page: connection, samples and charts."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.web.live.paged_lists import Listed, Listings, Order
    from cli.web.live.samples import EVERY, Samples
    from cli.web.live.svg_charts import Chart, bars, chart
    from cli.web.live.topic_tails import TopicTails
    from cli.web.live.web_log_client import WebLogClient, highest
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "paged_lists": "Listed Listings Order",
            "web_log_client": "WebLogClient highest",
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
    "Order",
    "Samples",
    "TopicTails",
    "WebLogClient",
    "bars",
    "chart",
    "highest",
]
