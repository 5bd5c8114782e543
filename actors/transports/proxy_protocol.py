"""The PROXY protocol, versions 1 and 2: a proxy sends the address of its client.

The proxy sends the header first on a connection, before any data of the client. Specification:
https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt (sections by number).
"""

from __future__ import annotations

import ipaddress
import struct
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from actors.transports.peer import Network, Peer, is_trusted, plain_address
from actors.transports.stage import Stage

if TYPE_CHECKING:
    import asyncio


_SIGNATURE: Final = b"\r\n\r\n\x00\r\nQUIT\n"
_LINE_START: Final = b"PROXY "
_LONGEST_LINE: Final = 107
"""Bytes of a line of version 1 with its end (2.1)."""
_HEAD: Final = struct.Struct("!12sBBH")
_TLV: Final = struct.Struct("!BH")
"""Type and length of a value after the addresses (2.2)."""
_MAX_AFTER_HEAD: Final = 4096
"""Maximum bytes of addresses and TLVs in a header of version 2; proxies send a few hundred."""
_LOCAL, _PROXY = 0x20, 0x21
_FAMILIES: Final = {0x11: 4, 0x21: 16}
"""Family and transport (TCP over IPv4, over IPv6) to the bytes of an address (2.2)."""
_WITHOUT_ADDRESS: Final = frozenset({0x00, 0x31, 0x32})
"""Unspecified, and Unix sockets: there is no useful address."""


class BadHeader(Exception):  # noqa: N818 - named for what is found
    """The data is not a valid PROXY header; the message gives the reason without quoting it."""


class Header(NamedTuple):
    """A complete header."""

    peer: Peer | None
    """Address and port of the client; None: the connection is the proxy's own, or unknown."""
    size: int
    """Bytes of the header; the client's data follows."""


def encode_header(peer: Peer | None, values: Iterable[tuple[int, bytes]] = ()) -> bytes:
    """Return a header of version 2; ``values`` are the types and values of its TLVs.

    Without ``peer`` the family is unspecified. Raises BadHeader if the header is too long.
    """
    family, addresses = 0, b""
    if peer is not None:
        host = ipaddress.ip_address(peer[0].partition("%")[0])
        width = len(host.packed)
        family = next(family_number for family_number, size in _FAMILIES.items() if size == width)
        addresses = host.packed + bytes(width) + struct.pack("!HH", peer[1], 0)
    body = addresses + b"".join(_TLV.pack(kind, len(value)) + value for kind, value in values)
    if len(body) > _MAX_AFTER_HEAD:
        raise BadHeader(f"the PROXY header is longer than {_MAX_AFTER_HEAD} bytes")
    return _HEAD.pack(_SIGNATURE, _PROXY, family, len(body)) + body


def read_values(header: bytes) -> list[tuple[int, bytes]]:
    """Return the types and values of the TLVs of a complete header of version 2.

    Raises BadHeader if they do not end with the header.
    """
    width = _FAMILIES.get(header[_HEAD.size - 3], 0)
    at = _HEAD.size + (2 * width + 4 if width else 0)
    values = []
    while at < len(header):
        if at + _TLV.size > len(header):
            raise BadHeader("a value of the PROXY header is incomplete")
        kind, size = _TLV.unpack_from(header, at)
        at += _TLV.size
        if at + size > len(header):
            raise BadHeader("a value of the PROXY header is incomplete")
        values.append((kind, header[at : at + size]))
        at += size
    return values


def read_header(data: bytes) -> Header | None:
    """Read the header at the start of ``data``; None while it is incomplete. Raises BadHeader."""
    if data.startswith(_SIGNATURE):
        return _read_binary(data)
    if data.startswith(_LINE_START):
        return _read_line(data)
    if not _SIGNATURE.startswith(data) and not _LINE_START.startswith(data):
        raise BadHeader("it does not begin with a PROXY header")
    return None


def _read_line(data: bytes) -> Header | None:
    end = data.find(b"\r\n", 0, _LONGEST_LINE)
    if end < 0:
        if len(data) >= _LONGEST_LINE:
            raise BadHeader("the line of the PROXY header is too long")
        return None
    words = data[:end].split(b" ")
    size = end + 2
    if words[1] == b"UNKNOWN":
        return Header(None, size)
    try:
        _, family, source, target, port, target_port = (word.decode("ascii") for word in words)
        width = {"TCP4": 4, "TCP6": 16}[family]
        host = _host(source, width)
        _host(target, width)
        _port(target_port)
        return Header((host, _port(port)), size)
    except (ValueError, KeyError):
        raise BadHeader("the line of the PROXY header is malformed") from None


def _host(text: str, width: int) -> str:
    """Read an address of a family; one with a zone is only valid on the proxy's machine."""
    address = ipaddress.ip_address(text)
    if len(address.packed) != width or "%" in text:
        raise ValueError(text)
    return str(plain_address(text))


def _port(text: str) -> int:
    if not text.isdigit() or len(text) > len("65535") or int(text) > 0xFFFF:
        raise ValueError(text)
    return int(text)


def _read_binary(data: bytes) -> Header | None:
    if len(data) < _HEAD.size:
        return None
    _, command, family, length = _HEAD.unpack_from(data)
    if length > _MAX_AFTER_HEAD:
        raise BadHeader(f"the PROXY header is longer than {_MAX_AFTER_HEAD} bytes")
    if command not in (_LOCAL, _PROXY):
        raise BadHeader("the PROXY header has an unknown version or command")
    width = _FAMILIES.get(family)
    if command == _PROXY and width is None and family not in _WITHOUT_ADDRESS:
        raise BadHeader("the PROXY header describes a connection that is not TCP")
    size = _HEAD.size + length
    if len(data) < size:
        return None
    if command == _LOCAL or width is None:
        return Header(None, size)
    if length < 2 * width + 4:
        raise BadHeader("the PROXY header is too short for its addresses")
    at = _HEAD.size
    host = str(plain_address(str(ipaddress.ip_address(data[at : at + width]))))
    (port,) = struct.unpack_from("!H", data, at + 2 * width)
    return Header((host, port), size)


class ProxyStage(Stage):
    """Reads the header, and from then on returns the client's address.

    Headers are accepted only from the ``trusted`` networks and from Unix sockets; other connections
    are closed. The extra info ``peername`` is the proxy's own address until the header is read, and
    ``peer_pending`` is True until then; then ``upper.peer_known()`` is called. The deadline is that
    of the CONNECT above.
    """

    __slots__ = ("_head", "_peer", "_trusted", "error")

    def __init__(self, upper: asyncio.Protocol, trusted: Sequence[Network]) -> None:
        super().__init__(upper)
        self._trusted = trusted
        self._head: bytes | None = b""  # None: the header has been read
        self._peer: Peer | None = None
        self.error: str | None = None
        """Why the connection was closed by this stage."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Close connections from untrusted addresses."""
        super().connection_made(transport)
        if not self.is_closing() and not is_trusted(
            transport.get_extra_info("peername"), self._trusted
        ):
            self._refuse("it does not come from a trusted proxy")

    def data_received(self, data: bytes) -> None:
        """Read the header, then pass on."""
        self._read(len(data))
        if self._head is None:
            self._upper.data_received(data)
            return
        if self.error is not None or self.is_closing():
            return
        self._head += data
        try:
            header = read_header(self._head)
        except BadHeader as error:
            self._refuse(str(error))
            return
        if header is None:
            return
        payload, self._head = self._head[header.size :], None
        self._peer = header.peer
        self.peer_known()
        if payload and not self.is_closing():
            self._upper.data_received(payload)

    def connection_lost(self, exc: Exception | None) -> None:
        """Pass on the reason for the end, if it is known here."""
        self._upper.connection_lost(ConnectionError(self.error) if self.error else exc)

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the client's address in place of the proxy's."""
        if name == "peername" and self._peer is not None:
            return self._peer
        if name == "peer_pending":
            return self._head is not None
        return super().get_extra_info(name, default)

    def _refuse(self, why: str) -> None:
        self.error = why
        self._head = b""
        self.lower.abort()
