"""Answers about all logs of a node or cluster: their events by time, and their states joined.

A position is one of a single log, so a moment of all logs is a time. Errors about one of the logs
name it. The history of a message in several logs is in ``projections.explanation``.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from projections.several_logs.joined_changes import (
        JoinedChange,
        LogChanges,
        changes_in_logs,
        joined_retained_changes,
        joined_sessions_changed,
    )
    from projections.several_logs.joined_state import (
        JoinedRetained,
        JoinedState,
        LogState,
        fold_logs,
    )
    from projections.several_logs.log_moments import points_in_logs, short_name
    from projections.several_logs.merged_events import LogEntry, MergedReader, merged_entries
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "joined_changes": (
                "JoinedChange LogChanges changes_in_logs joined_retained_changes "
                "joined_sessions_changed"
            ),
            "joined_state": "JoinedRetained JoinedState LogState fold_logs",
            "log_moments": "points_in_logs short_name",
            "merged_events": "LogEntry MergedReader merged_entries",
        },
    )

__all__ = [
    "JoinedChange",
    "JoinedRetained",
    "JoinedState",
    "LogChanges",
    "LogEntry",
    "LogState",
    "MergedReader",
    "changes_in_logs",
    "fold_logs",
    "joined_retained_changes",
    "joined_sessions_changed",
    "merged_entries",
    "points_in_logs",
    "short_name",
]
