"""The data source ``foldmq``: options, planning, pushdown, batches and streams."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from spark.datasource.discovery import (
        find_in_archive,
        find_in_nats,
        find_logs,
        join_with_archive,
    )
    from spark.datasource.log import Log, LogBounds
    from spark.datasource.options import SourceOptions
    from spark.datasource.planning import (
        RecordTimes,
        bytes_of,
        group_ranges,
        plan_log,
        plan_ranges,
        split_ranges,
    )
    from spark.datasource.point_options import PointOption
    from spark.datasource.source import FoldmqSource, register
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "discovery": "find_in_archive find_in_nats find_logs join_with_archive",
            "log": "Log LogBounds",
            "point_options": "PointOption",
            "options": "SourceOptions",
            "planning": "RecordTimes bytes_of group_ranges plan_log plan_ranges split_ranges",
            "source": "FoldmqSource register",
        },
    )

__all__ = [
    "FoldmqSource",
    "Log",
    "LogBounds",
    "PointOption",
    "RecordTimes",
    "SourceOptions",
    "bytes_of",
    "find_in_archive",
    "find_in_nats",
    "find_logs",
    "group_ranges",
    "join_with_archive",
    "plan_log",
    "plan_ranges",
    "register",
    "split_ranges",
]
