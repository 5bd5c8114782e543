"""Binding addresses to listen on, and the errors when that fails."""

import asyncio
import errno
import socket
from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

import structlog

from cli.common.units import Address
from cli.settings.setting_sources import flag_of
from cli.settings.settings import Settings
from protocol.errors import FoldmqError

_Found: TypeAlias = tuple[int, int, int, str, tuple[Any, ...]]
_TRIES: Final = 5
"""Number of attempts with any free port."""

log = structlog.get_logger("foldmq")


class ListenError(FoldmqError):
    """Listening on an address failed; ``name`` is the setting with the address."""

    exit_code = 69  # EX_UNAVAILABLE

    def __init__(self, place: object, error: OSError | UnicodeError, name: str = "listen") -> None:
        other = f"stop it or choose another {flag_of(name)}"
        reasons = {
            errno.EADDRINUSE: f"another program is listening there; {other}",
            errno.EACCES: "permission denied; ports below 1024 need privileges",
            errno.EADDRNOTAVAIL: "this machine has no such address",
        }
        if isinstance(error, socket.gaierror | UnicodeError):
            reason = "the host name cannot be resolved"
        else:
            reason = reasons.get(error.errno or 0) or error.strerror or str(error)
        where = f"{place}" if name == "listen" else f"{place} ({flag_of(name)})"
        super().__init__(f"cannot listen on {where}: {reason}")


def probe(place: Address, name: str = "listen", *, ipv4: bool = True) -> None:
    """Raise ListenError if ``place`` cannot be bound, before a long replay begins."""
    for listener in bind(place, name, 1, ipv4=ipv4):
        listener.close()


def raise_unless_default(settings: Settings, name: str, error: ListenError) -> None:
    """Log that a default address is taken; raise the error if the operator set the address.

    Several brokers on one machine share the default addresses.
    """
    if name in settings.model_fields_set:
        raise error
    log.warning("default address in use, continuing without it", setting=name, reason=str(error))


def bind(
    place: Address, name: str, backlog: int = 128, *, ipv4: bool = True
) -> list[socket.socket]:
    """Listen on all addresses of a host; raises ListenError.

    ``[::]`` stands for all IPv6 and IPv4 addresses, without ``ipv4`` for those of IPv6. Each
    protocol has a socket of its own, so that no client has an IPv4-mapped address. ``backlog`` is
    the number of connections that may wait to be accepted.
    """
    for _ in range(_TRIES):
        try:
            return _bind(place, name, backlog, ipv4=ipv4)
        except ListenError:
            # A free port of one address may be taken at the next.
            if place.port:
                raise
    return _bind(place, name, backlog, ipv4=ipv4)


async def readable(sockets: Sequence[socket.socket]) -> None:
    """Wait until a connection waits at one of the sockets, and leave it there."""
    loop = asyncio.get_running_loop()
    connected = asyncio.Event()
    for listener in sockets:
        loop.add_reader(listener, connected.set)
    try:
        await connected.wait()
    finally:
        for listener in sockets:
            loop.remove_reader(listener)


def _addresses(place: Address, *, ipv4: bool) -> Iterator[_Found]:
    for resolved in dict.fromkeys(
        socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
    ):
        family, kind, number, name, where = resolved
        yield resolved
        if ipv4 and family == socket.AF_INET6 and where[0] == "::":
            yield socket.AF_INET, kind, number, name, ("0.0.0.0", where[1])  # noqa: S104


def _bind(place: Address, name: str, backlog: int, *, ipv4: bool) -> list[socket.socket]:
    bound: list[socket.socket] = []
    try:
        for family, kind, number, _, where in _addresses(place, ipv4=ipv4):
            listener = socket.socket(family, kind, number)
            bound.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            # Accepted sockets inherit TCP keep-alive: without an MQTT keep alive only the system
            # notices lost peers.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # With port 0, all addresses get the same free port.
            port = bound[0].getsockname()[1] if place.port == 0 else place.port
            listener.bind((where[0], port, *where[2:]))
            listener.listen(backlog)
            listener.setblocking(False)
    except (OSError, UnicodeError) as error:
        for listener in bound:
            listener.close()
        raise ListenError(place, error, name) from None
    return bound
