"""The peer of a transport, and the client that proxies in front of it name."""

from __future__ import annotations

import ipaddress
import re
import socket
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    import asyncio

Network = ipaddress.IPv4Network | ipaddress.IPv6Network
Peer = tuple[str, int]

_NODE: Final = re.compile(r"\[([^]]+)\](?::(\d{1,5}))?|([^:]+)(?::(\d{1,5}))?|([0-9A-Fa-f:.]+)")
"""An address with or without a port; an IPv6 address with a port is in brackets."""
_PAIR: Final = re.compile(r'\s*([^\s=;]+)=("(?:[^"\\]|\\.)*"|[^\s";]+)\s*')
"""A parameter of an element of Forwarded (RFC 7239, 4)."""


def plain_address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Return an address; an IPv4-mapped IPv6 address as IPv4. Raises ValueError."""
    address = ipaddress.ip_address(text)
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return mapped or address


def is_trusted(peer: Any, trusted: Sequence[Network]) -> bool:
    """Return whether a peer is in a trusted network; Unix sockets have permissions of their own."""
    if not isinstance(peer, tuple):
        return True
    address = plain_address(str(peer[0]).partition("%")[0])
    return any(address in network for network in trusted)


def forwarded_peer(
    x_forwarded_for: Sequence[str], forwarded: Sequence[str], trusted: Sequence[Network]
) -> Peer | None:
    """Return the client that the headers of trusted proxies name, with port 0 if it is not known.

    That is the rightmost address that is not trusted: those to the left of it may be invented. None
    if there is no header, if it is malformed up to there, or if both kinds of header contradict
    each other: one of them may then be the client's own.
    """
    peers = []
    if x_forwarded_for:
        peers.append(_rightmost(",".join(x_forwarded_for).split(","), trusted))
    if forwarded:
        elements = _split_quoted(",".join(forwarded), ",")
        peers.append(_rightmost([_for(element) for element in elements], trusted))
    hosts = {peer[0] if peer is not None else None for peer in peers}
    return max(peers, key=_port_of) if len(hosts) == 1 else None


def _port_of(peer: Peer | None) -> int:
    return -1 if peer is None else peer[1]


def _rightmost(nodes: Iterable[str], trusted: Sequence[Network]) -> Peer | None:
    """Return the last address that is not trusted, or the first of all if all are; None: none."""
    peer = None
    for node in reversed([*nodes]):
        peer = _peer(node.strip())
        if peer is None or not is_trusted(peer, trusted):
            break
    return peer


def _peer(node: str) -> Peer | None:
    match = _NODE.fullmatch(node)
    if match is None:
        return None
    port = int(match[2] or match[4] or 0)
    try:
        host = str(plain_address(match[1] or match[3] or match[5]))
    except ValueError:
        return None
    return (host, port) if port <= 0xFFFF and "%" not in host else None


def _for(element: str) -> str:
    """Return the value of the parameter "for"; empty if there is none, or not exactly one."""
    values = []
    for text in _split_quoted(element, ";"):
        pair = _PAIR.fullmatch(text)
        if pair is None:
            return ""
        if pair[1].lower() == "for":
            value = pair[2]
            values.append(re.sub(r"\\(.)", r"\1", value[1:-1]) if value[0] == '"' else value)
    return values[0] if len(values) == 1 else ""


def _split_quoted(text: str, mark: str) -> list[str]:
    """Split a text at a mark outside quotes."""
    parts, start, quoted, skip = [], 0, False, False
    for at, letter in enumerate(text):
        if skip:
            skip = False
        elif letter == "\\":
            skip = quoted
        elif letter == '"':
            quoted = not quoted
        elif letter == mark and not quoted:
            parts.append(text[start:at])
            start = at + 1
    return [*parts, text[start:]]


def local_peer(transport: asyncio.BaseTransport) -> str:
    """Return user and process of the peer of a Unix socket; "" if unknown."""
    peer = transport.get_extra_info("local_peer")
    if peer is not None:  # it is on another node
        return str(peer)
    endpoint = transport.get_extra_info("socket")
    if endpoint is None or endpoint.family != socket.AF_UNIX or not hasattr(socket, "SO_PEERCRED"):
        return ""
    size = struct.calcsize("3i")
    pid, uid, _ = struct.unpack(
        "3i", endpoint.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, size)
    )
    return f"unix:uid={uid},pid={pid}"


# The user in a client certificate.

IdentityKind = Literal["cn", "dns", "email", "uri", "dn"]

_ALTERNATIVES: Final = {"dns": "DNS", "email": "email", "uri": "URI"}
_SHORT: Final = {
    "commonName": "CN",
    "countryName": "C",
    "domainComponent": "DC",
    "localityName": "L",
    "organizationName": "O",
    "organizationalUnitName": "OU",
    "stateOrProvinceName": "ST",
    "streetAddress": "STREET",
    "userId": "UID",
}
"""Attribute names with a short form in RFC 4514 (3)."""


def identity(peercert: Mapping[str, Any] | None, kind: IdentityKind) -> str | None:
    """Return the user in a verified certificate, as ``ssl`` describes it, or None.

    ``cn`` is the common name of the subject, ``dn`` the whole subject as RFC 4514 writes it,
    ``dns``, ``email`` and ``uri`` the alternative name of that type. If there are several of a
    kind, or one with control characters, the user is ambiguous: None.
    """
    if not peercert:
        return None
    if kind == "dn":
        names = [_distinguished(peercert)]
    elif kind == "cn":
        names = [value for name, value in _subject(peercert) if name == "commonName"]
    else:
        alternative = _ALTERNATIVES[kind]
        names = [value for name, value in peercert.get("subjectAltName", ()) if name == alternative]
    if len(names) != 1 or not names[0] or not names[0].isprintable():
        return None
    return names[0]


def _subject(peercert: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for part in peercert.get("subject", ()):
        yield from part


def _distinguished(peercert: Mapping[str, Any]) -> str:
    """Write the subject with the most specific part first."""
    return ",".join(
        "+".join(f"{_SHORT.get(name, name)}={_escaped(value)}" for name, value in part)
        for part in reversed(peercert.get("subject", ()))
    )


def _escaped(value: str) -> str:
    """Escape special characters of a distinguished name (RFC 4514, 2.4)."""
    text = "".join(f"\\{char}" if char in ',+"\\<>;' else char for char in value)
    if text.startswith((" ", "#")):
        text = "\\" + text
    if text.endswith(" ") and len(text) > 1 and not text.endswith("\\ "):
        text = text[:-1] + "\\ "
    return text
