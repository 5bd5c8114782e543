"""Connections: listeners, admission, the CONNECT handshake, input and keep alive."""

from typing import TYPE_CHECKING

from protocol.front_door import front_door

if TYPE_CHECKING:
    from actors.connection.admission import Admission
    from actors.connection.connection import Connection
    from actors.connection.listener import Listener, ListenerOptions
    from actors.connection.pseudonyms import KEY_SIZE, pseudonym
    from actors.connection.receive_window import ReceiveWindow
    from actors.connection.takeovers import Old, Takeovers
else:
    __getattr__ = front_door(
        __name__,
        {
            "admission": "Admission",
            "connection": "Connection",
            "listener": "Listener ListenerOptions",
            "pseudonyms": "KEY_SIZE pseudonym",
            "receive_window": "ReceiveWindow",
            "takeovers": "Old Takeovers",
        },
    )

__all__ = [
    "KEY_SIZE",
    "Admission",
    "Connection",
    "Listener",
    "ListenerOptions",
    "Old",
    "ReceiveWindow",
    "Takeovers",
    "pseudonym",
]
