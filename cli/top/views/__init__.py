"""The full-screen views of ``foldmq top``."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.top.views.base_view import View
    from cli.top.views.help_view import Help
    from cli.top.views.overview_view import Overview
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "base_view": "View",
            "help_view": "Help",
            "overview_view": "Overview",
        },
    )

__all__ = ["Help", "Overview", "View"]
