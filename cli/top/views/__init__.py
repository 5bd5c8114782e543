"""The full-screen views of ``foldmq top``."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.top.views.base_view import View
    from cli.top.views.help_view import Help
    from cli.top.views.overview_view import Overview
else:
    __getattr__ = front_door(
        __name__,
        {
            "base_view": "View",
            "help_view": "Help",
            "overview_view": "Overview",
        },
    )

__all__ = ["Help", "Overview", "View"]
