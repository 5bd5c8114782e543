"""Connections: listeners, admission, the CONNECT handshake, input and keep alive."""

from typing import TYPE_CHECKING

from protocol.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from actors.connection.admission import Admission
    from actors.connection.connection import Connection
    from actors.connection.listener import Listener, ListenerOptions
    from actors.connection.pseudonyms import KEY_SIZE, name_in_log, pseudonym
    from actors.connection.receive_window import ReceiveWindow
    from actors.connection.socket_actor import SocketCloser
else:
    __getattr__ = lazy_exports(
        __name__,
        {
            "admission": "Admission",
            "connection": "Connection",
            "listener": "Listener ListenerOptions",
            "pseudonyms": "KEY_SIZE name_in_log pseudonym",
            "receive_window": "ReceiveWindow",
            "socket_actor": "SocketCloser",
        },
    )

__all__ = [
    "KEY_SIZE",
    "Admission",
    "Connection",
    "Listener",
    "ListenerOptions",
    "ReceiveWindow",
    "SocketCloser",
    "name_in_log",
    "pseudonym",
]
