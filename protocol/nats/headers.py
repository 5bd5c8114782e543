"""Headers of NATS messages: encoding those of a publication, and parsing those of others.

Properties of MQTT 5 as headers are in :mod:`protocol.nats.property_headers`.

A block is ``NATS/1.0``, a line ``Key: value`` for each header, and an empty line, each ended by
CR LF. Servers put a status after the version: ``NATS/1.0 503``.

An arbitrary value (a topic, a client identifier) is percent-encoded as in URLs, so that no name can
inject another header: ``urllib.parse.unquote`` decodes it. ``Nmqtt-Pub`` has exactly the bytes that
the NATS Server writes for its own MQTT clients.
"""

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Final

PUB: Final = "Nmqtt-Pub"
TOPIC: Final = "Foldmq-Topic"
QOS: Final = "Foldmq-QoS"
RETAIN: Final = "Foldmq-Retain"
CLIENT: Final = "Foldmq-Client"
CLIENT_DIGEST: Final = "Foldmq-Client-Digest"
NODE: Final = "Foldmq-Node"
MESSAGE_ID: Final = "Nats-Msg-Id"

MAX_BYTES: Final = 64 * 1024
MAX_HEADERS: Final = 100
"""Bounds on the part of a block that is read, in bytes and headers; the rest is ignored."""

MAX_CLIENT: Final = 256
"""Size in bytes of the longest client identifier that is written, since it is in the headers of
every message. A longer one is replaced by its digest."""

_VERSION: Final = "NATS/1.0"
_STATUS: Final = b"NATS/1.0 "
_ENCODED = re.compile(rb"[^\x21-\x24\x26-\x7e]")


class Headers:
    """The headers of one message.

    ``status`` is the code of a server's status line (``"503"``), empty for all other messages.
    """

    __slots__ = ("_lines", "_values", "status")

    def __init__(
        self,
        values: dict[str, str] | None = None,
        status: str = "",
        lines: Sequence[str] = (),
    ) -> None:
        self._values = {} if values is None else values
        self._lines = lines
        self.status = status

    @property
    def fields(self) -> list[tuple[str, str]]:
        """All names and values in their order; bytes that are not UTF-8 are surrogates."""
        parts = [line.partition(":") for line in self._lines]
        fields = [(name.strip(), value.strip()) for name, colon, value in parts if colon]
        return [field for field in fields if field[0]]

    def __len__(self) -> int:
        return len(self._values)

    def get(self, key: str) -> str | None:
        """Return the first value of a header, ignoring case; None: there is no such header."""
        return self._values.get(key.lower())


def encode_value(text: str) -> bytes:
    """Percent-encode the bytes outside 0x21 to 0x7E, and ``%``."""
    return encode_bytes(text.encode(errors="replace"))


def encode_bytes(data: bytes) -> bytes:
    """Percent-encode the bytes outside 0x21 to 0x7E, and ``%``."""
    if not _ENCODED.search(data):
        return data
    return _ENCODED.sub(lambda byte: b"%%%02X" % byte[0][0], data)


def constant_part(topic: str, qos: int, *, retain: bool, client: str, node: str) -> bytes:
    """Return the part of a block that all messages of a client with these parameters share.

    :func:`header_block` completes it to a block. At QoS 1 and 2 it ends in the middle of the
    message id, before the position.
    """
    encoded_node = encode_value(node)
    lines = [
        _VERSION.encode(),
        b"%b:%d" % (PUB.encode(), qos),
        b"%b: %b" % (TOPIC.encode(), encode_value(topic)),
        b"%b: %d" % (QOS.encode(), qos),
        _publisher(client),
        b"%b: %b" % (NODE.encode(), encoded_node),
    ]
    if retain:
        lines.append(b"%b: 1" % RETAIN.encode())
    lines.append(b"%b: %b-" % (MESSAGE_ID.encode(), encoded_node) if qos else b"")
    return b"\r\n".join(lines)


def _publisher(client: str) -> bytes:
    data = client.encode(errors="replace")
    if len(data) <= MAX_CLIENT:
        return b"%b: %b" % (CLIENT.encode(), encode_value(client))
    return b"%b: %b" % (CLIENT_DIGEST.encode(), sha256(data).hexdigest().encode())


def header_block(constant: bytes, position: int | None = None, more: bytes = b"") -> bytes:
    """Return the block of one message; ``position`` is required at QoS 1 and 2, and only there.

    ``more`` are further lines, each ended by CR LF.
    """
    if position is None:
        return b"%b%b\r\n" % (constant, more)
    return b"%b%d\r\n%b\r\n" % (constant, position, more)


def without_message_id(constant: bytes) -> bytes:
    """Return the constant part at QoS 1 and 2 without the message id, for a block without one."""
    return constant[: constant.rindex(b"\r\n") + 2]


def parse_headers(block: bytes) -> Headers:
    """Parse an untrusted block: never raises, takes time linear in its size.

    Of a repeated key the first value counts. Spaces around keys and values are removed, lines
    without a colon or a key are skipped, bytes that are not UTF-8 are replaced.
    """
    if len(block) > MAX_BYTES:
        block = block[: block.rfind(b"\n", 0, MAX_BYTES) + 1]
    first, *lines = block.decode(errors="surrogateescape").split("\n", MAX_HEADERS + 1)
    version, _, status = first.strip().partition(" ")
    if version != _VERSION:
        return Headers()
    values: dict[str, str] = {}
    del lines[MAX_HEADERS:]
    for line in lines:
        key, colon, value = line.partition(":")
        key = key.strip().lower()
        if colon and key and key not in values:
            values[key] = value.strip()
    if not block.isascii():
        values = {_replaced(key): _replaced(value) for key, value in values.items()}
    return Headers(values, _replaced(status.strip().partition(" ")[0]), lines)


def has_status(block: bytes) -> bool:
    """Return whether a block has a status line: it is from a server, not a client's message."""
    return block.startswith(_STATUS)


def _replaced(text: str) -> str:
    """Replace bytes that are not UTF-8."""
    return text.encode(errors="surrogateescape").decode(errors="replace")
