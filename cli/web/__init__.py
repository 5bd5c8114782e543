"""The web page of a running broker: its current and past state; read-only by default.

It is a process of its own (``foldmq web``, started by ``foldmq serve``), so that neither rendering
a page nor folding the log delays a client. The current state comes from the broker's inspector, the
past from its log, by the same modules as ``foldmq log`` and ``foldmq replay``.
"""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from cli.web import web_command
    from cli.web.web_process import WebProcess
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "web_process": "WebProcess",
            "web_command": "web_command",
        },
    )

__all__ = ["WebProcess", "web_command"]
