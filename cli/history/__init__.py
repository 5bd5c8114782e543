"""The commands on a log: ``log``, ``replay``, ``diff``, ``why`` and ``verify``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.history import log_commands
    from cli.history.diff import change_mark, session_changes, session_diff
    from cli.history.log_events import Selection, event_selection
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "diff": "change_mark session_changes session_diff",
            "log_commands": "log_commands",
            "log_events": "Selection event_selection",
        },
    )

__all__ = [
    "Selection",
    "change_mark",
    "event_selection",
    "log_commands",
    "session_changes",
    "session_diff",
]
