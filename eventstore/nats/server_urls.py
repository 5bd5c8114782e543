"""The addresses of NATS servers as the operator writes them, and the choice of the next one."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from nats.aio.client import Server

_SCHEMES: Final = ("nats", "tls", "ws", "wss")
_PORT: Final = 4222


def split_urls(text: str) -> tuple[str, ...]:
    """Return the addresses of a comma-separated list."""
    return tuple(url for part in text.split(",") if (url := part.strip()))


def url_problem(text: str) -> str:
    """Return the invalid address of a list, and the reason, as ``= URL: WHY``; empty if none.

    A password may contain a comma, so any part may belong to a password: then no part is shown.
    """
    urls = [part.strip() for part in text.split(",")]
    if not any(urls):
        return ": no server is named: must be nats://HOST:PORT"
    if "" in urls:
        return ": an address is missing beside a comma"
    places: dict[tuple[str, int], str] = {}
    for url in urls:
        place, what = _read(url)
        if place in places:
            what = "named twice"
        if what:
            return f": {what}" if "@" in text else f" = {url}: {what}"
        if place is not None:
            places[place] = url
    if len({_scheme(url) in ("ws", "wss") for url in urls}) > 1:
        return ": addresses of WebSocket (ws, wss) and others (nats, tls) cannot be mixed"
    return ""


def _read(url: str) -> tuple[tuple[str, int] | None, str]:
    """Return host and port of an address, or its error."""
    try:
        parts = urlsplit(url if "://" in url else f"nats://{url}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None, "not a valid URL: must be nats://HOST:PORT or tls://HOST:PORT"
    if parts.scheme not in _SCHEMES:
        return None, "not the URL of a NATS server: must be nats://HOST:PORT or tls://HOST:PORT"
    if re.search(r"[\s\x00-\x1f\x7f]", url):
        return None, "contains a space or a control character; several are separated by commas"
    if not host or port == 0:
        return None, "host or port is missing: must be nats://HOST:PORT or tls://HOST:PORT"
    return (host, port or _PORT), ""


def _scheme(url: str) -> str:
    return url.partition("://")[0].lower() if "://" in url else "nats"


def without_secrets(url: str) -> str:
    """Return an address for display: without user or password."""
    scheme, separator, address = url.rpartition("://")
    return scheme + separator + address.rpartition("@")[2]


_AVOIDED: Final = 5.0
"""Seconds for which a server that could not be reached is tried after all others."""


class ServerChoice:
    """Chooses the server for the next attempt to connect: the least recently tried one.

    nats-py chooses at random, and may return to the server that it has just left. A server that
    could not be reached is tried after the others for a while: a suspended one takes 2 s each time.
    """

    def __init__(self, wait: float) -> None:
        self._wait = wait
        self._tried: dict[str, float] = {}
        self._failed: dict[str, float] = {}
        """When a server could not be reached."""
        self._dialed = ""
        """The server that is being dialed."""

    def connected(self, netloc: str) -> None:
        """Record the server of the current connection."""
        self._tried[netloc] = time.monotonic()
        self._failed.pop(netloc, None)
        self._dialed = ""

    def __call__(self, servers: list[Server], _info: dict[str, object]) -> tuple[Server, float]:
        """Return the next server, and the seconds before it is dialed."""
        now = time.monotonic()
        if self._dialed:
            self._failed[self._dialed] = now
        avoided = {netloc for netloc, when in self._failed.items() if now - when < _AVOIDED}

        def order(server: Server) -> tuple[bool, float]:
            netloc = server.uri.netloc
            return netloc in avoided, self._tried.get(netloc, 0.0)

        chosen = min(servers, key=order)
        since = now - self._tried.get(chosen.uri.netloc, float("-inf"))
        delay = max(0.0, self._wait - since)
        self._tried[chosen.uri.netloc] = now + delay
        self._dialed = chosen.uri.netloc
        return chosen, delay
