"""Connections: listeners, admission, the CONNECT handshake, input and keep alive."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from actors.connection.admission import Admission
    from actors.connection.connection import Connection
    from actors.connection.listener import Listener, ListenerOptions
    from actors.connection.pseudonyms import KEY_SIZE, pseudonym
    from actors.connection.takeovers import Old, Takeovers
    from actors.connection.turn import Turn
else:
    __getattr__ = front_door(
        __name__,
        {
            "admission": "Admission",
            "connection": "Connection",
            "listener": "Listener ListenerOptions",
            "pseudonyms": "KEY_SIZE pseudonym",
            "takeovers": "Old Takeovers",
            "turn": "Turn",
        },
    )

__all__ = [
    "KEY_SIZE",
    "Admission",
    "Connection",
    "Listener",
    "ListenerOptions",
    "Old",
    "Takeovers",
    "Turn",
    "pseudonym",
]
