"""Traffic statistics of a log, and their report."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.traffic.traffic_html import traffic_page
    from spark.traffic.traffic_report import traffic_json, traffic_text
    from spark.traffic.traffic_stats import TRAFFIC_KEYS, TrafficStats, measure_traffic
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "traffic_html": "traffic_page",
            "traffic_report": "traffic_json traffic_text",
            "traffic_stats": "TRAFFIC_KEYS TrafficStats measure_traffic",
        },
    )

__all__ = [
    "TRAFFIC_KEYS",
    "TrafficStats",
    "measure_traffic",
    "traffic_json",
    "traffic_page",
    "traffic_text",
]
