"""The peer of a transport."""

from __future__ import annotations

import socket
import struct
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import asyncio


def local_peer(transport: asyncio.BaseTransport) -> str:
    """Return user and process of the peer of a Unix socket; "" if unknown."""
    told = transport.get_extra_info("local_peer")
    if told is not None:  # it is on another node
        return str(told)
    endpoint = transport.get_extra_info("socket")
    if endpoint is None or endpoint.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return ""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return f"unix:uid={uid},pid={pid}"
