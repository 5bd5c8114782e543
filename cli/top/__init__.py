"""``foldmq top``: monitors a running broker, on a terminal or as text.

``text`` computes figures and lines from the broker's replies and is pure; ``data`` holds the
connection to the broker and its queries; ``once`` prints one frame as text or JSON; ``top_app`` and
``views`` are the full-screen view.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.top import top_command
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "top_command": "top_command",
        },
    )

__all__ = ["top_command"]
