"""The header of a connection from one node to another: describes the client, proves the node.

The leader sends a greeting and a nonce. The other node answers with a header of the PROXY protocol,
version 2. Its TLVs are a description of the client as JSON and, behind it, an HMAC-SHA256 with the
cluster's key over the nonce and everything before the HMAC. A header is therefore valid for one
connection. The leader replies with one byte (:class:`PeerAnswer`); the client's bytes follow.
"""

import dataclasses
import hashlib
import hmac
from dataclasses import dataclass
from enum import Enum
from typing import Final

import orjson

from actors.transports.peer import Peer
from actors.transports.proxy_protocol import BadHeader, encode_header, read_header, read_values

MAGIC: Final = b"foldmq peer 1\n"
"""The leader's greeting; the number changes with the protocol between nodes."""
NONCE_SIZE: Final = 32
_CLIENT, _HMAC = 0xE0, 0xE1
"""Types of the TLVs: free for use within an organisation (PROXY protocol, 2.2.7)."""
_DIGEST: Final = 32


class BadClientHeader(Exception):  # noqa: N818 - named for what is found
    """The header of a node is not valid; the message says why."""


class PeerAnswer(Enum):
    """The leader's reply to a header."""

    ACCEPTED = b"\x01"
    """The client's bytes may follow."""
    REFUSED = b"\x02"
    """A limit of the leader refuses the client."""
    LATER = b"\x03"
    """The node does not take clients now: try again, with the node that leads then."""


@dataclass(frozen=True, slots=True)
class ForwardedClient:
    """A client that a node passes on."""

    peer: Peer | None
    """Address and port; None for a Unix socket."""
    node: str
    """Name of the node that the client is connected to."""
    listener: str
    """The listener there, as in the settings."""
    local_peer: str = ""
    """User and process of a client at a Unix socket."""
    certified: str | None = None
    """The user that the client's certificate names."""
    anonymous: bool = False
    """Whether the listener admits clients without a user name."""
    version: str = ""
    """Version of TLS; empty: the connection to the client is not encrypted."""
    cipher: str = ""
    max_packet_size: int = 0
    """Maximum bytes of a packet at the listener."""
    connect_timeout: float = 10.0
    """Seconds within which the CONNECT has to be accepted."""
    publish_rate: float = 0.0
    """PUBLISH packets per second of the listener; 0: unlimited."""
    publish_bytes: float = 0.0
    """Bytes per second of the listener; 0: unlimited."""
    waited: float = 0.0
    """Seconds since the client connected, which count toward ``connect_timeout``."""


_KINDS: Final[dict[str, type | tuple[type, ...]]] = {
    "node": str,
    "listener": str,
    "local_peer": str,
    "certified": (str, type(None)),
    "anonymous": bool,
    "version": str,
    "cipher": str,
    "max_packet_size": int,
    "connect_timeout": (int, float),
    "publish_rate": (int, float),
    "publish_bytes": (int, float),
    "waited": (int, float),
}


def encode_client(client: ForwardedClient, nonce: bytes, key: bytes) -> bytes:
    """Return the header for a client; raises BadClientHeader if it would be too long."""
    facts = dataclasses.asdict(client)
    del facts["peer"]
    try:
        unsigned = encode_header(
            client.peer, [(_CLIENT, orjson.dumps(facts)), (_HMAC, bytes(_DIGEST))]
        )[:-_DIGEST]
    except BadHeader as error:
        raise BadClientHeader(str(error)) from None
    return unsigned + _digest(unsigned, nonce, key)


def decode_client(data: bytes, nonce: bytes, key: bytes) -> tuple[ForwardedClient, int] | None:
    """Return the client that a header describes, and the header's size; None: it is incomplete.

    Raises BadClientHeader. Fields added by later versions are ignored.
    """
    try:
        header = read_header(data)
        if header is None:
            return None
        whole = data[: header.size]
        values = read_values(whole)
    except BadHeader as error:
        raise BadClientHeader(str(error)) from None
    if [kind for kind, _ in values] != [_CLIENT, _HMAC]:
        raise BadClientHeader("it is not the header of a node")
    (_, facts), (_, digest) = values
    if not hmac.compare_digest(digest, _digest(whole[:-_DIGEST], nonce, key)):
        raise BadClientHeader("it does not have the key of this cluster")
    try:
        raw = orjson.loads(facts)
        fields = {name: value for name, value in raw.items() if name in _KINDS}
        if not all(isinstance(value, _KINDS[name]) for name, value in fields.items()):
            raise BadClientHeader("its description of the client is not valid")
        return ForwardedClient(header.peer, **fields), header.size
    except (ValueError, TypeError, AttributeError):
        raise BadClientHeader("its description of the client is not valid") from None


def _digest(unsigned: bytes, nonce: bytes, key: bytes) -> bytes:
    return hmac.new(key, b"foldmq peer " + nonce + unsigned, hashlib.sha256).digest()
