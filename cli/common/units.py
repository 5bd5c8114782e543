"""Sizes, times and addresses as written in settings."""

import ipaddress
import re
from collections.abc import Mapping
from typing import NamedTuple

_NUMBER = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*")

_BYTES = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
}
_SECONDS = {"": 1.0, "ms": 0.001, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0, "d": 86400.0}


class Address(NamedTuple):
    """A host name or IP address, and a TCP port (0: any free one)."""

    host: str
    port: int

    def __str__(self) -> str:
        """Return ``host:port``, or ``[host]:port`` for IPv6."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Return whether the address can be reached from this machine only."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def address(value: object) -> Address:
    """Parse ``host:port`` or ``[ipv6]:port``; raises ValueError with the expected form."""
    if isinstance(value, Address):
        return value
    host, colon, port = str(value).strip().rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise ValueError("must be host:port, with an IPv6 address in brackets such as [::1]:1883")
    if not colon or not host:
        raise ValueError("must be host:port such as 127.0.0.1:1883")
    if not (port.isascii() and port.isdigit() and int(port) <= 65535):
        raise ValueError("must end with a port from 0 to 65535")
    return Address(host, int(port))


def size(value: object) -> object:
    """Parse a size such as ``"16 MiB"`` as bytes; other types than text are returned unchanged.

    Raises ValueError with the expected form.
    """
    if not isinstance(value, str):
        return value
    scaled = _scaled(value, _BYTES)
    if scaled is None or not scaled.is_integer():
        raise ValueError(
            "must be a size: a number of bytes, or a number with KiB, MiB, GiB, kB, MB or GB"
        )
    return int(scaled)


def seconds(value: object) -> object:
    """Parse a time such as ``"30s"`` as seconds; other types than text are returned unchanged.

    Raises ValueError with the expected form.
    """
    if not isinstance(value, str):
        return value
    scaled = _scaled(value, _SECONDS)
    if scaled is None:
        raise ValueError("must be a time: a number of seconds, or a number with ms, s, m, h or d")
    return scaled


def _scaled(text: str, units: dict[str, int] | dict[str, float]) -> float | None:
    match = _NUMBER.fullmatch(text)
    if match is None or match[2].lower() not in units:
        return None
    return float(match[1]) * units[match[2].lower()]


_SIZES = {" GiB": 2**30, " MiB": 2**20, " KiB": 2**10, " B": 1}
_TIMES = {"d": 86_400, "h": 3600, "m": 60, "s": 1, "ms": 0.001}


def size_shown(count: int) -> str:
    """Return a default size as written in settings; 0 is shown as none."""
    return _in_units(count, _SIZES) if count else "none"


def time_shown(seconds: float) -> str:
    """Return a default time as written in settings; 0 is shown as never."""
    return _in_units(seconds, _TIMES) if seconds else "never"


def _in_units(value: float, units: Mapping[str, float]) -> str:
    """Return a value in the largest unit that divides it, or else in the smallest unit."""
    whole = (unit for unit, factor in units.items() if value % factor == 0)
    unit = next(whole, [*units][-1])
    return f"{value / units[unit]:.15g}{unit}"
