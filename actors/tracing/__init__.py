"""Live traces of what actors receive, send and append to the log."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from actors.tracing.tracer import Tracer
else:
    __getattr__ = front_door(
        __name__,
        {
            "tracer": "Tracer",
        },
    )

__all__ = [
    "Tracer",
]
