"""The web page of a running broker: its current and past state, read-only.

It is a process of its own (``foldmq web``, started by ``foldmq serve``), so that neither rendering
a page nor folding the log delays a client. The current state comes from the broker's inspector, the
past from its log, by the same modules as ``foldmq log`` and ``foldmq replay``.
"""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.web import web_command
    from cli.web.child import WebPage
else:
    __getattr__ = front_door(
        __name__,
        {
            "child": "WebPage",
            "web_command": "web_command",
        },
    )

__all__ = ["WebPage", "web_command"]
