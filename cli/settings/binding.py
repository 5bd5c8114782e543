"""Addresses to listen on: whether they can be had, and what to do when not."""

import errno
import socket

import structlog

from cli.common import Address
from cli.settings.settings import Settings, flag
from protocol.errors import FoldmqError

log = structlog.get_logger("foldmq")


class ListenError(FoldmqError):
    """An address that cannot be listened on; ``name`` is the setting that asks for it."""

    exit_code = 69  # EX_UNAVAILABLE

    def __init__(self, place: object, error: OSError | UnicodeError, name: str = "listen") -> None:
        other = f"stop it or choose another {flag(name)}"
        reasons = {
            errno.EADDRINUSE: f"another program listens there; {other}",
            errno.EACCES: "not permitted; ports below 1024 need privileges",
            errno.EADDRNOTAVAIL: "this machine does not have that address",
        }
        if isinstance(error, socket.gaierror | UnicodeError):
            reason = "this name has no address"
        else:
            reason = reasons.get(error.errno or 0) or error.strerror or str(error)
        where = f"{place}" if name == "listen" else f"{place} ({flag(name)})"
        super().__init__(f"cannot listen on {where}: {reason}")


def probe(place: Address, name: str = "listen") -> None:
    """Raise ListenError when ``place`` is taken: better now than after a long replay."""
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        for family, kind, number, _, where in found:
            with socket.socket(family, kind, number) as listener:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                if family == socket.AF_INET6:
                    listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
                listener.bind(where)
                listener.listen(1)
    except (OSError, UnicodeError) as error:
        raise ListenError(place, error, name) from None


def excuse(settings: Settings, name: str, error: ListenError) -> None:
    """Go on without what a setting only has by default; raise the error if it was asked for.

    Several brokers on one machine do not all get the default address.
    """
    if name in settings.model_fields_set:
        raise error
    log.warning("the default address is taken, going on without", setting=name, reason=str(error))


def bind(place: Address, name: str, backlog: int = 128) -> list[socket.socket]:
    """Listen on an address, on all that a host name stands for; raises ListenError.

    ``backlog`` connections may wait to be accepted.
    """
    bound: list[socket.socket] = []
    try:
        found = socket.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM)
        for family, kind, number, _, where in dict.fromkeys(found):
            listener = socket.socket(family, kind, number)
            bound.append(listener)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            # Any free port is the same one for all addresses.
            port = bound[0].getsockname()[1] if place.port == 0 else place.port
            listener.bind((where[0], port, *where[2:]))
            listener.listen(backlog)
            listener.setblocking(False)
    except (OSError, UnicodeError) as error:
        for listener in bound:
            listener.close()
        raise ListenError(place, error, name) from None
    return bound
