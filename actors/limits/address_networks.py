"""The unit in which addresses are counted: a host, or a whole IPv6 network."""

import socket
from functools import lru_cache

_MAPPED = bytes(10) + b"\xff\xff"
"""Prefix of an IPv4-mapped IPv6 address."""
_REMEMBERED = 4096


@lru_cache(_REMEMBERED)
def network_of(host: str) -> str:
    """Return the network under which ``host`` is counted: "192.0.2.1", "2001:db8:1:2::/64".

    A customer has at least an IPv6 /64, and could use any number of addresses in it. Anything else
    (a Unix socket, a name from a proxy) counts separately.
    """
    return _networks(host, (64,))[0]


def networks_of(host: str) -> list[str]:
    """Return the networks of ``host`` that one customer may have whole, the smallest first.

    Those are the IPv6 /64, /56 and /48; anything else is the only one, as :func:`network_of`.
    """
    return _networks(host, (64, 56, 48))


def _networks(host: str, lengths: tuple[int, ...]) -> list[str]:
    """Return the IPv6 networks of ``host`` with prefixes of so many bits."""
    if ":" not in host:
        return [host]
    try:
        packed = socket.inet_pton(socket.AF_INET6, host.partition("%")[0])
    except (OSError, ValueError):
        return [host]
    if packed.startswith(_MAPPED):
        return [socket.inet_ntop(socket.AF_INET, packed[12:])]
    prefixes = [packed[: bits // 8].ljust(len(packed), b"\0") for bits in lengths]
    return [
        f"{socket.inet_ntop(socket.AF_INET6, prefix)}/{bits}"
        for prefix, bits in zip(prefixes, lengths, strict=True)
    ]
