"""Endpoints of listeners as written in settings: a transport and an address."""

import re
from typing import Literal, NamedTuple

from cli.common.units import Address, address

Kind = Literal["tcp", "tls", "ws", "wss", "unix"]

_SCHEMES: dict[str, Kind] = {
    "tcp": "tcp",
    "mqtt": "tcp",
    "tls": "tls",
    "ssl": "tls",
    "mqtts": "tls",
    "ws": "ws",
    "wss": "wss",
}
_MAX_PATH = 107
"""Maximum length of the path of a Unix socket in bytes (unix(7))."""
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
EXPECTED = "must be host:port, tls://host:port, ws://host:port, wss://host:port or unix:/path"


class Endpoint(NamedTuple):
    """A transport and the address of its listener."""

    kind: Kind
    place: Address | None
    """None for a Unix socket."""
    path: str = ""
    """Path of the Unix socket."""

    def __str__(self) -> str:
        """Return the endpoint as written in settings; TCP has no prefix."""
        if self.place is None:
            return f"unix:{self.path}"
        return str(self.place) if self.kind == "tcp" else f"{self.kind}://{self.place}"

    @property
    def loopback(self) -> bool:
        """Return whether it can be reached from this machine only."""
        return self.place is None or self.place.loopback

    @property
    def encrypted(self) -> bool:
        """Return whether it uses TLS."""
        return self.kind in ("tls", "wss")

    @property
    def framed(self) -> bool:
        """Return whether it uses WebSocket."""
        return self.kind in ("ws", "wss")


def endpoint(value: object) -> Endpoint:
    """Parse an endpoint; raises ValueError with the expected form."""
    if isinstance(value, Endpoint):
        return value
    if isinstance(value, Address):
        return Endpoint("tcp", value)
    text = str(value).strip()
    if text.startswith("unix:"):
        return Endpoint("unix", None, _path(text))
    scheme = _SCHEME.fullmatch(text)
    if scheme is None:
        return Endpoint("tcp", address(text))
    kind = _SCHEMES.get(scheme[1].lower())
    if kind is None:
        raise ValueError(EXPECTED)
    place = scheme[2].rstrip("/")
    if "/" in place:
        raise ValueError("must end with the port; set the WebSocket path with ws_path")
    return Endpoint(kind, address(place))


def _path(text: str) -> str:
    path = text.removeprefix("unix:")
    if path.startswith("//"):
        path = path.removeprefix("//")
    if not path or not path.isprintable() or path.endswith("/"):
        raise ValueError("must be unix:/path, a file that the broker creates")
    if len(path.encode()) > _MAX_PATH:
        raise ValueError(f"must have a path of at most {_MAX_PATH} bytes")
    return path
