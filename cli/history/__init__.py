"""The commands on a log: ``log``, ``replay``, ``diff``, ``why``, ``verify`` and ``salvage``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.history import log_commands, salvage
    from cli.history.diff import (
        change_mark,
        retained_changes,
        session_changes,
        session_diff,
        sessions_changed,
    )
    from cli.history.log_events import Selection, event_selection
    from cli.history.missing_message import explain_no_message
    from cli.history.why import WantedStories, find_histories, story_lines, told_lines
    from cli.history.why_logs import LogStory, published_anywhere
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "diff": "change_mark retained_changes session_changes session_diff sessions_changed",
            "log_commands": "log_commands",
            "log_events": "Selection event_selection",
            "salvage": "salvage",
            "missing_message": "explain_no_message",
            "why": "WantedStories find_histories story_lines told_lines",
            "why_logs": "LogStory published_anywhere",
        },
    )

__all__ = [
    "LogStory",
    "Selection",
    "WantedStories",
    "change_mark",
    "event_selection",
    "explain_no_message",
    "find_histories",
    "log_commands",
    "published_anywhere",
    "retained_changes",
    "salvage",
    "session_changes",
    "session_diff",
    "sessions_changed",
    "story_lines",
    "told_lines",
]
