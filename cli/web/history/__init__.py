"""The past for the web page, read from the log in the background: sessions, minutes, marks."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.web.history.activity import MINUTE_MS, Activity
    from cli.web.history.activity_reader import ActivityReader
    from cli.web.history.background_fold import Folding, Histories, MarkedHistory
    from cli.web.history.log_activities import ActivityOfLogs, LogActivities
    from cli.web.history.log_charts import day_charts
    from cli.web.history.state_diffs import FoldingStates, StateDiffs
    from cli.web.history.time_axis import SHORTEST_MS, TimeWindow, axis, window_within
    from cli.web.history.timeline_marks import MARK_LABELS
    from cli.web.history.topic_activity import Branch
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "activity": "MINUTE_MS Activity",
            "activity_reader": "ActivityReader",
            "background_fold": "Folding Histories MarkedHistory",
            "log_activities": "ActivityOfLogs LogActivities",
            "log_charts": "day_charts",
            "timeline_marks": "MARK_LABELS",
            "state_diffs": "FoldingStates StateDiffs",
            "time_axis": "SHORTEST_MS TimeWindow axis window_within",
            "topic_activity": "Branch",
        },
    )

__all__ = [
    "MARK_LABELS",
    "MINUTE_MS",
    "SHORTEST_MS",
    "Activity",
    "ActivityOfLogs",
    "ActivityReader",
    "Branch",
    "Folding",
    "FoldingStates",
    "Histories",
    "LogActivities",
    "MarkedHistory",
    "StateDiffs",
    "TimeWindow",
    "axis",
    "day_charts",
    "window_within",
]
