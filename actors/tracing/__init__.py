"""Live traces: the messages, output and events of actors."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.tracing.tracer import Tracer
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "tracer": "Tracer",
        },
    )

__all__ = [
    "Tracer",
]
