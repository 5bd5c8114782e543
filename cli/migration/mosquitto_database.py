"""Reads ``mosquitto.db``, the file in which Mosquitto keeps its state, in the formats 5 and 6.

Mosquitto 1.6 writes format 5, 2.0 and 2.1 write format 6. The file is a header and chunks:

=====  ==========================================================================
bytes  content
=====  ==========================================================================
15     00 B5 00 ``mosquitto db``
4, 4   a checksum that is always 0, and the format (big-endian)
4, 4   type of the first chunk, and its size without these 8 bytes (big-endian)
n      the chunk: a C structure, then texts, a payload, and a block of properties
=====  ==========================================================================

Sizes within a structure are big-endian; its 64-bit numbers are in the byte order of the machine,
which is taken to be little-endian. Chunks name clients by their identifiers and messages by number.

The file has no checksum and no end mark, so every size, text and reference is checked: a file that
is not consistent is refused as a whole.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from cli.settings.setting_sources import ConfigError
from protocol.errors import FoldmqError
from protocol.mqtt.field_reader import check_topic_filter
from protocol.mqtt.message_properties import split_properties
from protocol.mqtt.packets import PacketType
from protocol.mqtt.property_codec import find_properties, read_variable
from protocol.mqtt.property_table import SUBSCRIPTION_IDENTIFIER
from protocol.mqtt.protocol_error import ProtocolError
from protocol.mqtt.topics import TopicError, validate_topic_name

_MAGIC: Final = b"\x00\xb5\x00mosquitto db"
_HEADER: Final = struct.Struct(">4xI")
_CHUNK: Final = struct.Struct(">II")
_ID: Final = struct.Struct("<Q")
_TIME: Final = struct.Struct("<q")
_MESSAGE: Final = struct.Struct(">IHHHHHBB")
_CLIENT: Final = struct.Struct(">IHH")
_CLIENT_6: Final = struct.Struct(">HH4x")
_SENT: Final = struct.Struct(">HHBBBB")
_SUBSCRIPTION: Final = struct.Struct(">IHHBB2x")
_FORMATS: Final = (5, 6)
_INCOMING: Final = 0

INCOMING_UNRELEASED: Final = frozenset({7, 8, 10})
"""States of a message from a client at QoS 2 whose PUBREL has not arrived."""
AWAITS_ACK: Final = frozenset({2, 3, 4, 5})
"""States of a message to a client that has a packet identifier and is not acknowledged."""
AWAITS_PUBCOMP: Final = frozenset({6, 9})
QUEUED: Final = 11


class DamagedDatabase(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """The file is not a complete, consistent database of Mosquitto."""

    exit_code = 65

    def __init__(self, path: Path, what: str) -> None:
        """Describe the damage."""
        super().__init__(
            f"{path}: {what}; nothing was imported: use a copy that Mosquitto wrote when it was "
            "stopped, or copy the retained messages with 'foldmq import retained'"
        )


class StoredMessage(NamedTuple):
    """A message."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    publisher: str
    """Client identifier; empty: not known."""
    block: bytes
    """Its properties, as foldmq keeps them, without the expiry."""
    expires: int
    """Unix time in seconds; 0: never."""


class ClientMessage(NamedTuple):
    """A message to a client, or an unreleased one from it at QoS 2."""

    message: int
    """Number of the message."""
    pid: int
    """Packet identifier; 0: none yet."""
    qos: int
    state: int
    retain: bool
    incoming: bool
    subscription_identifier: int
    """0: none."""


class ClientSubscription(NamedTuple):
    """A subscription of a client."""

    filter: str
    qos: int
    options: int
    """As in the packet, without the QoS."""
    identifier: int


@dataclass(slots=True)
class ClientState:
    """A client with a session that outlives its connection."""

    name: str
    user: str | None
    """None: anonymous; format 5 does not name users."""
    expiry: int | None
    """Session expiry interval in seconds; None: it does not expire."""
    expires: int
    """Time at which it expires, Unix time in seconds; 0: not known, or never."""
    last_pid: int
    subscriptions: list[ClientSubscription] = field(default_factory=list)
    messages: list[ClientMessage] = field(default_factory=list)
    """Oldest first."""


@dataclass(slots=True)
class MosquittoDatabase:
    """The content of the file."""

    format: int
    digest: bytes
    """SHA-256 of the file."""
    saved_ms: int
    """Time at which Mosquitto wrote it, Unix time in milliseconds."""
    messages: dict[int, StoredMessage] = field(default_factory=dict)
    """By number, in the order in which they were published."""
    clients: dict[str, ClientState] = field(default_factory=dict)
    retained: list[int] = field(default_factory=list)


class _Problem(Exception):  # noqa: N818 - becomes a DamagedDatabase
    """What is wrong with the chunk that is being read."""


def read_database(path: Path) -> MosquittoDatabase:
    """Read a file. Raises DamagedDatabase, or ConfigError if it cannot be read."""
    try:
        data = path.read_bytes()
        saved_ms = path.stat().st_mtime_ns // 1_000_000
    except OSError as error:
        raise ConfigError(f"{path}: cannot read: {error.strerror}") from None
    begin = len(_MAGIC) + _HEADER.size
    if len(data) < begin or not data.startswith(_MAGIC):
        raise DamagedDatabase(path, "not a database of Mosquitto")
    (version,) = _HEADER.unpack_from(data, len(_MAGIC))
    if version not in _FORMATS:
        raise DamagedDatabase(path, f"has format {version}, not 5 or 6")
    database = MosquittoDatabase(version, hashlib.sha256(data).digest(), saved_ms)
    at = begin
    try:
        while at < len(data):
            at = _read_chunk(data, at, database)
        _check_references(database)
    except (_Problem, ProtocolError, TopicError, UnicodeDecodeError, struct.error) as error:
        what = "a text is not UTF-8" if isinstance(error, UnicodeDecodeError) else str(error)
        where = "in the references" if at >= len(data) else f"at byte {at}"
        raise DamagedDatabase(path, f"damaged or incomplete {where}: {what}") from None
    database.messages = dict(sorted(database.messages.items()))
    return database


def _read_chunk(data: bytes, at: int, database: MosquittoDatabase) -> int:
    """Add the chunk at an offset; return the offset of the next one."""
    if len(data) - at < _CHUNK.size:
        raise _Problem("the file ends within a chunk")
    kind, size = _CHUNK.unpack_from(data, at)
    end: int = at + _CHUNK.size + size
    if end > len(data):
        raise _Problem("the file ends within a chunk")
    read = _READERS.get(kind)
    if read is None:
        raise _Problem(f"there is no chunk of type {kind}")
    try:
        read(_Chunk(data, at + _CHUNK.size, end), database)
    except struct.error:
        raise _Problem("a chunk is too short") from None
    return end


class _Chunk:
    """Reads the fields of a chunk one after the other."""

    def __init__(self, data: bytes, at: int, end: int) -> None:
        self._data = data
        self._at = at
        self._end = end

    def fields(self, layout: struct.Struct) -> tuple[int, ...]:
        """Return the numbers of a structure."""
        return layout.unpack(self.take(layout.size))

    def take(self, size: int) -> bytes:
        """Return the next bytes."""
        begin, self._at = self._at, self._at + size
        if self._at > self._end:
            raise _Problem("a chunk is too short")
        return self._data[begin : self._at]

    def text(self, size: int) -> str:
        """Return a text of so many bytes."""
        text = self.take(size).decode("utf-8")
        if "\0" in text:
            raise _Problem("a text contains a NUL character")
        return text

    def properties(self) -> bytes:
        """Return the properties that the rest of the chunk consists of."""
        block = self.take(self._end - self._at)
        if not block:
            return b""
        begin, end = find_properties(block, 0, len(block), "a message")
        if end != len(block):
            raise _Problem("a chunk is too long")
        return block[begin:end]

    def finish(self) -> None:
        """Raise _Problem unless everything was read."""
        if self._at != self._end:
            raise _Problem("a chunk is too long")


def _configuration(chunk: _Chunk, _found: MosquittoDatabase) -> None:
    """Check the size of the identifiers of messages."""
    if chunk.take(16)[9] != _ID.size:
        raise _Problem("numbers of messages do not have 8 bytes")
    chunk.finish()


def _message(chunk: _Chunk, database: MosquittoDatabase) -> None:
    (number,) = chunk.fields(_ID)
    (expires,) = chunk.fields(_TIME)
    size, _, name, user, topic_size, _, qos, retain = chunk.fields(_MESSAGE)
    publisher = chunk.text(name)
    chunk.text(user)
    topic = chunk.text(topic_size)
    if number in database.messages or qos > 2 or expires < 0:
        raise _Problem(f"message {number} is not valid")
    validate_topic_name(topic)
    payload = chunk.take(size)
    properties = split_properties(chunk.properties(), PacketType.PUBLISH)
    block = properties.block[5:] if properties.expiry >= 0 else properties.block
    database.messages[number] = StoredMessage(
        topic, payload, qos, bool(retain), publisher, block, expires
    )


def _client(chunk: _Chunk, database: MosquittoDatabase) -> None:
    (expires,) = chunk.fields(_TIME)
    interval, last_pid, name_size = chunk.fields(_CLIENT)
    user_size = chunk.fields(_CLIENT_6)[1] if database.format == 6 else 0
    name, user = chunk.text(name_size), chunk.text(user_size)
    chunk.finish()
    if not name or name in database.clients or expires < 0:
        raise _Problem("a client is not valid, or occurs twice")
    # Format 5 has 0 also for sessions of MQTT 3.1.1, which do not expire.
    never = interval == 0xFFFFFFFF or (database.format == 5 and not interval)
    database.clients[name] = ClientState(
        name, user or None, None if never else interval, 0 if never else expires, last_pid
    )


def _client_message(chunk: _Chunk, database: MosquittoDatabase) -> None:
    (number,) = chunk.fields(_ID)
    pid, name_size, qos, state, retain_dup, direction = chunk.fields(_SENT)
    client = _client_of(chunk.text(name_size), database)
    properties = chunk.properties()
    identifier = 0
    if properties[:1] == bytes((SUBSCRIPTION_IDENTIFIER,)):
        identifier, _ = read_variable(properties, 1, len(properties), "a message")
    if qos > 2 or direction > 1:
        raise _Problem(f"message {number} of client {client.name} is not valid")
    client.messages.append(
        ClientMessage(
            number, pid, qos, state, retain_dup >= 0x10, direction == _INCOMING, identifier
        )
    )


def _subscription(chunk: _Chunk, database: MosquittoDatabase) -> None:
    identifier, name_size, filter_size, qos, options = chunk.fields(_SUBSCRIPTION)
    client = _client_of(chunk.text(name_size), database)
    topic_filter = chunk.text(filter_size)
    chunk.finish()
    check_topic_filter(topic_filter)
    if qos > 2:
        raise _Problem(f"a subscription of client {client.name} is not valid")
    client.subscriptions.append(
        ClientSubscription(topic_filter, qos, options & 0b0011_1100, identifier)
    )


def _retained(chunk: _Chunk, database: MosquittoDatabase) -> None:
    database.retained.append(chunk.fields(_ID)[0])
    chunk.finish()


def _client_of(name: str, database: MosquittoDatabase) -> ClientState:
    client = database.clients.get(name)
    if client is None:
        raise _Problem("names a client that the file does not contain")
    return client


def _check_references(database: MosquittoDatabase) -> None:
    for number in database.retained:
        if number not in database.messages:
            raise _Problem(f"retained message {number} is missing")
    for client in database.clients.values():
        for sent in client.messages:
            if sent.message not in database.messages:
                raise _Problem(f"message {sent.message} of client {client.name} is missing")


_READERS: Final[Mapping[int, Callable[[_Chunk, MosquittoDatabase], None]]] = {
    1: _configuration,
    2: _message,
    3: _client_message,
    4: _retained,
    5: _subscription,
    6: _client,
}
