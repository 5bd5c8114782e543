"""The stored form of the projections: a message for each session, topic and client, and a mark.

A message consists of, in this order (integers big-endian):

=====  ===========================================================================
bytes  content
=====  ===========================================================================
4      magic ``FMP`` and the format version
16     the first half of the SHA-256 of everything that follows
8      digest: exclusive or of the tags of all keys, this one included
8      version: the log position that the message reflects (everything before it)
1      kind: 1 session, 2 retained message, 3 mark, 4 removed key, 5 history of a client, 6 keys
       of a topic
2, 2   number of the part and of parts (a session's large state)
4      length of the name
n      client identifier or topic, UTF-8
rest   session: JSON (``projections.state.snapshot``); retained: QoS, position, key and salt if
       its content is sealed, publisher if it is known, properties if it has any, payload; mark:
       JSON; history: JSON (``projections.state.client_history``); keys of a topic: JSON
       (``projections.state.topic_keys``)
=====  ===========================================================================

A *tag* is a hash of key and version: if the exclusive or of the tags that a reader has equals the
digest of the last message, the reader has all messages, in the right versions. The *mark* contains
the record up to which all messages together reflect the log.
"""

import hashlib
import struct
from base64 import urlsafe_b64encode
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from sys import intern
from typing import Any, Final, TypeAlias

import orjson

from eventstore.format.node_events import LogArchived, LogCut
from eventstore.format.positions import Position
from eventstore.format.sealing import SALT_BYTES, RecordSeal, SealedBytes, first_sealed, new_salt
from projections.log_proof import Doubt, doubts_of
from projections.state.retained import RetainedMessage
from protocol.errors import FoldmqError

MAGIC = b"FMP\x02"
"""Version 1 had no publishers of retained messages: they are in the log, which is folded."""
SESSION, RETAINED, MARK, GONE, HISTORY, KEY = 1, 2, 3, 4, 5, 6
MARK_KEY: Final = "mark"
_DOUBTFUL_LENGTH: Final = 256 * 1024
"""Length of all names up to which a mark names doubtful sessions."""

_HEAD = struct.Struct(">4s16sQQBHHI")
_SIGNED_FROM = 20
_MESSAGE = struct.Struct(">BQ")
_WITH_BLOCK, _WITH_PUBLISHER, _SEALED = 0x80, 0x40, 0x20
"""Flags beside the QoS: key and salt, the publisher, then properties, follow the position."""
_SEAL = struct.Struct(f">Q{SALT_BYTES}s")
_PUBLISHER = struct.Struct(">H")
"""Size of the publisher's client identifier in bytes."""
_BLOCK = struct.Struct(">QI")
"""Expiry (Unix time in seconds, 0 for never) and size of the properties in bytes."""


class BadProjection(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """The projections are unusable; the log, which contains everything, is folded instead."""


class OtherVersion(BadProjection):
    """Another version of foldmq wrote the projections."""


def key_of(kind: int, name: str, part: int = 0) -> str:
    """Return the key of a session, topic or client; those of a kind have the same length."""
    short = hashlib.sha256(name.encode()).digest()[:20]
    token = urlsafe_b64encode(short).rstrip(b"=").decode()
    key = f"{_NAMESPACES.get(kind, 'session')}.{token}"
    return f"{key}.{part}" if part else key


_NAMESPACES: Final = {RETAINED: "retained", HISTORY: "client", KEY: "key"}


def version_tag(key: str, version: Position) -> int:
    """Return the 64-bit tag of this version of this key."""
    text = f"{key}@{version}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big")


class StoredEntry:
    """One message of the projections.

    ``name`` is a client identifier or a topic; everything before ``version`` is reflected.
    """

    __slots__ = ("body", "digest", "kind", "name", "part", "parts", "version")

    # Written out: the one that a dataclass generates is not compiled.
    def __init__(
        self,
        kind: int,
        name: str,
        version: Position,
        digest: int,
        body: bytes,
        part: int = 0,
        parts: int = 1,
    ) -> None:
        self.kind = kind
        self.name = name
        self.version = version
        self.digest = digest
        self.body = body
        self.part = part
        self.parts = parts

    def encode(self) -> bytes:
        """Return the bytes of the message."""
        name = self.name.encode()
        head = _HEAD.pack(
            MAGIC, b"", self.digest, self.version, self.kind, self.part, self.parts, len(name)
        )
        signed = head[_SIGNED_FROM:] + name + self.body
        return MAGIC + hashlib.sha256(signed).digest()[:16] + signed


def decode_entry(data: bytes) -> StoredEntry:
    """Return the entry of a message. Raises BadProjection when it is invalid or damaged."""
    if len(data) < _HEAD.size or data[:3] != MAGIC[:3]:
        raise BadProjection("a message of the projections has an unknown format")
    _, check, digest, version, kind, part, parts, size = _HEAD.unpack_from(data)
    if hashlib.sha256(data[_SIGNED_FROM:]).digest()[:16] != check:
        raise BadProjection("a message of the projections has a wrong checksum")
    if data[3:4] != MAGIC[3:]:
        raise OtherVersion("the projections were written by another version of foldmq")
    body = _HEAD.size + size
    name = data[_HEAD.size : body].decode()
    return StoredEntry(kind, name, version, digest, data[body:], part, parts)


_Key: TypeAlias = "Callable[[int], bytes | None] | None"


def retained_body(message: RetainedMessage, key: _Key = None) -> bytes:
    """Return the body of a retained message's entry; ``key`` returns the keys of contents."""
    flags, more, block, payload = message.qos, b"", message.block, message.payload
    if isinstance(payload, SealedBytes):
        salt, number = new_salt(), payload.key
        flags, more = flags | _SEALED, _SEAL.pack(number, salt)
        if payload.opened and key is not None:
            block, payload = _turned(RecordSeal(salt, key), number, block, payload)
    if message.publisher:
        flags |= _WITH_PUBLISHER
        publisher = message.publisher.encode()
        more += _PUBLISHER.pack(len(publisher)) + publisher
    if block:
        flags |= _WITH_BLOCK
        more += _BLOCK.pack(message.expires, len(block)) + block
    return _MESSAGE.pack(flags, message.ref) + more + payload


def _turned(seal: RecordSeal, number: int, block: bytes, payload: bytes) -> tuple[bytes, bytes]:
    """Return the properties and the payload of a message sealed, or opened."""
    begin = first_sealed(block)
    hidden = block[:begin] + seal.turned(number, begin, block[begin:])
    return hidden, seal.turned(number, len(block), payload)


def retained_of(entry: StoredEntry, key: _Key = None) -> RetainedMessage:
    """Return the retained message in an entry; ``key`` returns the keys of contents."""
    body = entry.body
    flags, ref = _MESSAGE.unpack_from(body)
    at, publisher, block, expires, number, salt = _MESSAGE.size, "", b"", 0, 0, b""
    if flags & _SEALED:
        number, salt = _SEAL.unpack_from(body, at)
        at += _SEAL.size
    if flags & _WITH_PUBLISHER:
        (size,) = _PUBLISHER.unpack_from(body, at)
        at += _PUBLISHER.size + size
        publisher = intern(body[at - size : at].decode())
    if flags & _WITH_BLOCK:
        expires, size = _BLOCK.unpack_from(body, at)
        at += _BLOCK.size + size
        block = body[at - size : at]
    payload = body[at:]
    if number:
        opened = key is not None and key(number) is not None
        if opened and key is not None:
            block, payload = _turned(RecordSeal(salt, key), number, block, payload)
        block = SealedBytes.of(block, number, opened=opened) if block else block
        payload = SealedBytes.of(payload, number, opened=opened)
    return RetainedMessage(entry.name, payload, flags & 3, ref, block, expires, publisher)


@dataclass(slots=True)
class ProjectionMark:
    """The extent to which the projections reflect the log, and the rest of the node's state."""

    sequence: int
    """Everything up to and including this record is reflected; it ends a turn."""
    link: str
    """Link of this record, in hexadecimal."""
    sessions: int
    retained: int
    carriers: list[int] = field(default_factory=list)
    """Records that repeat messages whose own records were cut off."""
    checkpoints: list[tuple[int, Position, int]] = field(default_factory=list)
    """Number, position and time (Unix, ms) of the checkpoints where the log may begin."""
    cut: LogCut | None = None
    """The last cut of the log."""
    archived: tuple[Position, LogArchived] | None = None
    """The last event about an archive, and its position."""
    bridged: Position | None = None
    """Position up to which NATS has the publications, in marks of earlier versions."""
    epoch: int = 0
    """Epoch of the last leader; 0: no cluster."""
    followed: list[tuple[str, Position, str]] = field(default_factory=list)
    """Name, position and link of the other logs from which the node takes messages."""
    doubts: list[Doubt] = field(default_factory=list)
    """The parts of the log about which nothing can be said."""
    destinations: list[list[Any]] = field(default_factory=list)
    """Name and state of each destination (``projections.state.destinations``)."""
    keys: list[Any] = field(default_factory=list)
    """The highest key, and the last erasure (``projections.state.topic_keys``)."""
    doubtful: list[str] = field(default_factory=list)
    """Sessions whose state may depend on lost records; too many are ``""``, which is all."""

    def body(self) -> bytes:
        """Return the body of the mark's entry."""
        values = {column.name: getattr(self, column.name) for column in fields(self)}
        values["doubts"] = [tuple(doubt) for doubt in self.doubts]
        if sum(map(len, self.doubtful)) > _DOUBTFUL_LENGTH:
            values["doubtful"] = [""]
        kept = {name: value for name, value in values.items() if value or name not in _LATER}
        return orjson.dumps(kept)


_LATER: Final = frozenset({"epoch", "followed", "doubts", "destinations", "keys", "doubtful"})
"""Fields that earlier versions do not have: left out while they are empty."""


def mark_of(entry: StoredEntry) -> ProjectionMark:
    """Return the mark in an entry. Raises BadProjection when it contains none."""
    try:
        raw: dict[str, Any] = orjson.loads(entry.body)
        cut, archived = raw.pop("cut"), raw.pop("archived", None)
        raw["checkpoints"] = [tuple(values) for values in raw["checkpoints"]]
        raw["followed"] = [tuple(values) for values in raw.get("followed", ())]
        raw["doubts"] = doubts_of(raw.get("doubts", ()))
        return ProjectionMark(
            **raw,
            cut=None if cut is None else LogCut(**cut),
            archived=None if archived is None else (archived[0], LogArchived(**archived[1])),
        )
    except (ValueError, KeyError, TypeError):
        raise BadProjection("the mark of the projections cannot be read") from None
