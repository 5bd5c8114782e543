"""``foldmq top``: a running broker at a glance, on a terminal or as text.

- ``text``: what happened between two answers of the broker, and before, as figures and lines for
  whatever width; pure.
- ``data``: the connection to the broker, made anew when it was lost, and what is asked over it.
- ``once``: one frame as text or JSON.
- ``top_app``, ``views``: the full-screen view.
"""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.top import top_command
else:
    __getattr__ = front_door(
        __name__,
        {
            "top_command": "top_command",
        },
    )

__all__ = ["top_command"]
