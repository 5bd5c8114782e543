"""The port of a NATS server: a free one, the previous one, and the check that it answers."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import socket
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pathlib import Path

_PORTS: Final = range(20000, 32000)
"""Ports below the ephemeral ports of all systems: a client that keeps dialing an ephemeral port
while the server is down sometimes connects to itself, and then occupies the port."""
_TRIES: Final = 20


def configured_port(config: Path) -> int | None:
    """Return the port of the previous server, None when unknown."""
    try:
        port = json.loads(config.read_text(encoding="utf-8"))["port"]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return port if isinstance(port, int) and port in _PORTS else None


def free_port(host: str, preferred: int | None) -> int | None:
    """Return a free port, ``preferred`` if it is free; None: none found."""
    wanted = [] if preferred is None else [preferred]
    wanted += [_PORTS[secrets.randbelow(len(_PORTS))] for _ in range(_TRIES)]
    for port in wanted:
        with contextlib.suppress(OSError):
            family, kind, number, _, place = socket.getaddrinfo(
                host, port, type=socket.SOCK_STREAM
            )[0]
            with socket.socket(family, kind, number) as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                probe.bind(place)
                return port
    return None


async def is_listening(host: str, port: int, server_name: str) -> bool:
    """Return whether the server of this name sends its greeting on the port."""
    try:
        reader, writer = await asyncio.open_connection(host, port)
    except OSError:
        return False
    try:
        async with asyncio.timeout(2):
            greeting = await reader.readline()
        return bool(json.loads(greeting.removeprefix(b"INFO "))["server_name"] == server_name)
    except (OSError, ValueError, KeyError, TypeError):
        return False
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
