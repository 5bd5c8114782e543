"""Who is at the other end of a transport, and whether it still is."""

from __future__ import annotations

import contextlib
import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def local_peer(transport: asyncio.BaseTransport) -> str:
    """Return who is at the other end of a Unix socket: user and process; "" where nobody knows."""
    endpoint = transport.get_extra_info("socket")
    if endpoint is None or endpoint.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return ""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return f"unix:uid={uid},pid={pid}"


def keep_alive_in_tcp(transport: asyncio.BaseTransport) -> None:
    """Have the system notice peers that vanished: an MQTT keep alive of 0 asks us not to."""
    endpoint = transport.get_extra_info("socket")
    if endpoint is not None:
        with contextlib.suppress(OSError):
            endpoint.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
