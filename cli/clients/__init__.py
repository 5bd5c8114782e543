"""The MQTT clients ``foldmq pub`` and ``foldmq sub``."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from cli.clients import connection, pub, sub
else:
    __getattr__ = front_door(
        __name__,
        {
            "connection": "connection",
            "pub": "pub",
            "sub": "sub",
        },
    )

__all__ = ["connection", "pub", "sub"]
