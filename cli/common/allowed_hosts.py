"""The names by which an HTTP server of foldmq may be asked for: protection from DNS rebinding.

A foreign web page can make a browser ask us under a name of its own, whose address it
changes to ours. To the browser the answer then belongs to that page. But it names that host in its
request, and an address instead of a name cannot be changed in this way.
"""

import ipaddress
import re
import socket
from collections.abc import Iterable

from cli.common.units import Address

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::[0-9]{1,5})?")
"""A Host header: an address of IPv6 in brackets, or another address or name; perhaps a port."""


class Hosts:
    """Decides by their Host headers which requests are answered."""

    def __init__(
        self, places: Iterable[Address], names: Iterable[str] = (), *, literals: bool = False
    ) -> None:
        """Allow what is listened on, the loopback, and ``names``.

        Where all addresses of the machine are listened on, its name is allowed, and any address.
        With ``literals`` any address is allowed in any case.
        """
        listened = list(places)
        self._literals = literals or any(map(is_wildcard, listened))
        given = {place.host for place in listened} | {"localhost", *names}
        if any(map(is_wildcard, listened)):
            given.add(socket.gethostname())
        self._names = {name.casefold() for name in given}

    def allows(self, host: str) -> bool:
        """Return whether a Host header names us, with whatever port a tunnel has."""
        found = _HOST.fullmatch(host)
        if found is None:
            return False
        given = (found[1] or found[2]).casefold()
        if given in self._names:
            return True
        try:
            literal = ipaddress.ip_address(given)
        except ValueError:
            return False
        return literal.is_loopback or self._literals


def is_wildcard(place: Address) -> bool:
    """Return whether a place stands for all addresses of the machine."""
    try:
        return ipaddress.ip_address(place.host).is_unspecified
    except ValueError:
        return False
