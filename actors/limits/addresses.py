"""What counts as one address: hosts, not connections, and whole networks of IPv6."""

from __future__ import annotations

import socket
from functools import lru_cache

_MAPPED = bytes(10) + b"\xff\xff"
"""What an IPv4 address begins with when it is written as one of IPv6."""
_REMEMBERED = 4096


@lru_cache(_REMEMBERED)
def network_of(host: str) -> str:
    """Return what is counted together with ``host``: "192.0.2.1", "2001:db8:1:2::/64".

    One customer has at least a /64 of IPv6, so single addresses of it cost nothing. What is no
    IP address (a Unix socket, a name that a proxy gave) stands for itself.
    """
    if ":" not in host:
        return host
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except (OSError, ValueError):
        return host
    if packed.startswith(_MAPPED):
        return socket.inet_ntop(socket.AF_INET, packed[12:])
    return socket.inet_ntop(socket.AF_INET6, packed[:8] + bytes(8)) + "/64"
