"""The host names under which foldmq's HTTP servers answer: protection from DNS rebinding.

A foreign web page can make a browser send requests to this server under a host name of its own,
whose address it changes to ours. The browser then attributes the response to that page. But the
request names that host, and an IP address instead of a name cannot be changed in this way.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable

from cli.common.units import Address

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
"""A Host header: an IPv6 address in brackets, another address or a name; optionally a port."""


class Hosts:
    """Decides by the Host header whether a request is answered."""

    def __init__(
        self, places: Iterable[Address], names: Iterable[str] = (), *, literals: bool = False
    ) -> None:
        """Allow the listening address, the loopback, and ``names``.

        If the server listens on all addresses, also allow the name of the machine and any IP
        address. ``literals`` allows any IP address in any case.
        """
        listened = list(places)
        self._literals = literals or any(map(is_wildcard, listened))
        allowed_names = {place.host for place in listened} | {"localhost", *names}
        if any(map(is_wildcard, listened)):
            allowed_names.add(socket.gethostname())
        self._names = {name.casefold() for name in allowed_names}

    def allows(self, host: str) -> bool:
        """Return whether a Host header is allowed, with any port, as tunnels change it."""
        match = _HOST.fullmatch(host)
        if match is None:
            return False
        name = (match[1] or match[2]).casefold()
        if name in self._names:
            return True
        try:
            literal = ipaddress.ip_address(name)
        except ValueError:
            return False
        return literal.is_loopback or self._literals


def is_wildcard(place: Address) -> bool:
    """Return whether an address stands for all addresses of the machine."""
    try:
        return ipaddress.ip_address(place.host).is_unspecified
    except ValueError:
        return False
