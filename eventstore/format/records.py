"""Records: many events in one JetStream message.

A record consists of, in this order (integers big-endian):

=====  ==========================================================================
bytes  content
=====  ==========================================================================
4      magic ``FMQ`` and the format version, 2
32     SHA-256 of everything that follows: the checksum, and this record's link
32     the link of the record before it (zeros for the first): the hash chain
1      flags: 128 always; 1 if the JSON is deflated; 4 if there are destinations; 8 if contents
       are sealed, and 16 unless they are so in the earlier layout
4      length of the JSON header as stored
4      length of the JSON header
2      with flag 4: the number of destinations, and for each of them
10     the number of a log (2), and the sequence of the last record before that was meant for it (8)
16     with flag 8: the salt of the sealed contents (``sealing``)
n      JSON: node, time, part, last, jumps (from the first jump of the clock on), sealed (with flag
       8: begins, lengths and keys of the parts of the payload area that are sealed; in the earlier
       layout a list for each part), events
rest   the payloads of the messages, one after the other, as raw bytes; the blocks of properties
       of an event precede its payloads (``stored_properties``)
=====  ==========================================================================

Format 1, which is read as well, has neither flags nor destinations, and one length. As the flags of
format 2 always have 128, no record of one format can be taken for one of the other.

Deflated JSON is raw deflate with the dictionary of ``json_dictionary``. The JSON of a LogSalvaged
is never deflated. A record with any other flag is of a later foldmq.

A changed byte breaks the checksum; a lost, repeated or reordered record breaks the chain. Where
``foldmq salvage`` gave records up, a record with a LogSalvaged joins both ends of the chain.

A *turn* of the event loop is atomic. It nearly always fits into one record. A larger one is split
over several: ``part`` counts them from 0 and ``last`` marks the last one. A reader holds the parts
back until the last one is read. Parts that are followed by a ``part`` 0 belong to a turn that was
never completed: none of it was acknowledged, and the parts are void.
"""

from __future__ import annotations

import hashlib
import struct
import zlib
from binascii import b2a_base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, pairwise
from typing import Any, Final, NamedTuple, ParamSpec

import orjson

from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import Event, LogEvent
from eventstore.format.events import MessagePublished
from eventstore.format.fast_parse import parse_events
from eventstore.format.json_dictionary import DICTIONARY
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.sealing import (
    SALT_BYTES,
    AreaSeal,
    CipherOf,
    KeyOf,
    RecordSeal,
    SealedArea,
    SealedBytes,
    SealedPart,
    cipher_of,
    covered,
    first_sealed,
    parts_in,
    parts_in_list,
    sealed_parts,
    to_columns,
)
from eventstore.format.stored_properties import WithBlocks, block_bounds, spread_blocks
from eventstore.format.turn_expansion import expanded

FORMAT: Final[int] = 2
"""The format that is written; while nodes of a cluster do not read it, the one before."""
GENESIS = bytes(32)
"""The link of the predecessor in the first record of a log."""

MAGIC: Final = b"FMQ"
"""The letters before the format."""
_MAGICS: Final = (b"", b"FMQ\x01", b"FMQ\x02")
HEAD_SIZE: Final[int] = 68
"""Bytes of the head up to what depends on the format."""
_SIGNED_FROM = 36
"""Offset from which the digest covers the record: everything after the digest itself."""
_LINK, _PREVIOUS = slice(4, 36), slice(36, 68)
_FORMAT_2: Final = 0x80
_DEFLATED: Final = 0x01
_DESTINED: Final = 0x04
_SEALED: Final = 0x08
_SALTED_COUNTER: Final = 0x10
_KNOWN_FLAGS: Final = _FORMAT_2 | _DEFLATED | _DESTINED | _SEALED | _SALTED_COUNTER
_LENGTHS = struct.Struct(">BII")
_DESTINATION = struct.Struct(">HQ")
_LARGE = 16 * 1024
"""Mean payload size in bytes from which each payload is hashed separately."""
_DEFLATED_FROM, _DEFLATED_TO = 200, 16 * 1024
"""Sizes in bytes of JSON that is worth the time to deflate it."""
_INFLATED_MAX: Final = 64 * 1024 * 1024
"""Largest size in bytes of JSON that is inflated."""
_DEFLATE = zlib.compressobj(3, zlib.DEFLATED, -12, 5, zlib.Z_DEFAULT_STRATEGY, DICTIONARY)
"""Copied for each record: a new one takes twice as long."""
_OBJECTS = frozenset({dict})
_TURN = b'"e":"Turn'
"""Prefix of the type of an event of several sessions."""
_HOLE = b'"e":"LogSalvaged"'
_INVALID: Final = "has an invalid header"
_NO_AREA: Final = memoryview(b"")
_Arguments = ParamSpec("_Arguments")


class ClockJumps(NamedTuple):
    """The jumps of the clock in a log: a record has those up to it, itself included."""

    total_ms: int = 0
    """Sum of the jumps in milliseconds, those back counted as negative."""
    record: int = 0
    """Stream sequence of the record with the last ClockJumped; 0: there was none."""


NO_JUMPS: Final[ClockJumps] = ClockJumps()


def link_of(data: bytes) -> bytes:
    """Return the link by which the next record names this encoded record.

    It is its SHA-256. But a record of a LogSalvaged stands in the place of a lost record that the
    next one continues: its link is that of the lost record.
    """
    begin, body = _json_bounds(data)
    if data.find(_HOLE, begin, body) >= 0:
        try:
            (event,) = orjson.loads(data[begin:body])["events"]
            if event["e"] == "LogSalvaged" and event["link"]:
                return bytes.fromhex(event["link"])
        except (ValueError, KeyError, TypeError):
            pass
    return data[_LINK]


def previous_of(data: bytes) -> bytes:
    """Return the link of the record that this encoded record continues."""
    return data[_PREVIOUS]


def message_id(link: bytes) -> str:
    """Return the identifier of a record's message in NATS: unique among those that are sent."""
    return b2a_base64(link[:16], newline=False)[:22].decode()


def format_of(data: bytes) -> int:
    """Return the format of an intact record of a known one, also if its version byte is wrong."""
    return 2 if data[HEAD_SIZE] & _FORMAT_2 else 1


def _json_bounds(data: bytes) -> tuple[int, int]:
    """Return the offsets in a record at which its JSON begins and ends, as stored."""
    flags = data[HEAD_SIZE]
    begin = HEAD_SIZE + 4
    if not flags & _FORMAT_2:
        return begin, begin + int.from_bytes(data[HEAD_SIZE:begin], "big")
    size = int.from_bytes(data[HEAD_SIZE + 1 : HEAD_SIZE + 5], "big")
    begin = HEAD_SIZE + _LENGTHS.size
    if flags & _DESTINED:
        begin += 2 + _DESTINATION.size * int.from_bytes(data[begin : begin + 2], "big")
    if flags & _SEALED:
        begin += SALT_BYTES
    return begin, begin + size


def header_of(data: bytes) -> bytes:
    """Return the JSON of a record; raises ValueError if it cannot be inflated."""
    begin, body = _json_bounds(data)
    header, flags = data[begin:body], data[HEAD_SIZE]
    if not flags & _FORMAT_2:
        return header
    size = int.from_bytes(data[HEAD_SIZE + 5 : HEAD_SIZE + 9], "big")
    if flags & _DEFLATED:
        inflate = zlib.decompressobj(-15, DICTIONARY)
        try:
            header = inflate.decompress(header, min(size, _INFLATED_MAX) + 1)
        except zlib.error as error:
            raise ValueError(error) from None
        if not inflate.eof or inflate.unused_data:
            raise ValueError("deflated JSON does not end where it should")
    if len(header) != size:
        raise ValueError("JSON of another length")
    return header


def deflated_json(data: bytes, at: int) -> bytes:
    """Return the JSON of what may be a record at an offset, if it is deflated; otherwise empty."""
    end = at + HEAD_SIZE + _LENGTHS.size + 2
    head = data[at:end]
    if len(head) < end - at or not head[HEAD_SIZE] & _DEFLATED or not head[HEAD_SIZE] & _FORMAT_2:
        return b""
    size = int.from_bytes(head[HEAD_SIZE + 1 : HEAD_SIZE + 5], "big") + SALT_BYTES
    if head[HEAD_SIZE] & _DESTINED:
        size += _DESTINATION.size * int.from_bytes(head[-2:], "big")
    try:
        return header_of(data[at : end + size])
    except (ValueError, IndexError):
        return b""


def mentions(data: bytes, words: Iterable[bytes]) -> bool:
    """Return whether the JSON of a record has one of some words; true if it cannot be read."""
    try:
        header = header_of(data)
    except (ValueError, IndexError):
        return True
    return any(word in header for word in words)


def salt_of(data: bytes) -> bytes:
    """Return the salt of a record's sealed contents; empty: it has none."""
    flags = data[HEAD_SIZE]
    if not (flags & _FORMAT_2 and flags & _SEALED):
        return b""
    end = _json_bounds(data)[0]
    return data[end - SALT_BYTES : end]


def record_pieces(
    previous: bytes,
    node: str,
    time_ms: int,
    events: Sequence[LogEvent],
    payloads: Sequence[bytes],
    part: int = 0,
    *,
    last: bool = True,
    jumps: ClockJumps = NO_JUMPS,
    destinations: Sequence[tuple[int, int]] = (),
    record_format: int = FORMAT,
    sealed: Sequence[SealedPart] = (),
    salt: bytes = b"",
) -> Sequence[bytes]:
    """Return the bytes of a record in pieces; the first one contains the whole head.

    Large payloads are separate pieces: they are not copied. ``previous`` is the link of the record
    before it, ``time_ms`` Unix time in milliseconds, ``payloads`` the payload area in pieces, in
    the order in which the events refer to it; ``destinations`` the logs that it is meant for, by
    their numbers, each with the sequence of the last record before that was; ``sealed`` the parts
    of the payload area that are sealed with this ``salt``. Format 1 has neither of these.
    """
    fields: dict[str, Any] = {"node": node, "time": time_ms, "part": part, "last": last}
    if jumps.record:
        fields["jumps"] = list(jumps)
    if sealed:
        fields["sealed"] = to_columns(sealed)
    fields["events"] = list(map(json_object, events))
    header = orjson.dumps(fields)
    if record_format == 1 and not sealed:
        head = b"".join((previous, len(header).to_bytes(4, "big"), header))
    else:
        head = b"".join((previous, _compact(header, destinations, salt if sealed else b"")))
    magic = _MAGICS[2 if sealed else record_format]
    if sum(map(len, payloads)) < _LARGE * len(payloads):
        signed = b"".join((head, *payloads))
        return (b"".join((magic, hashlib.sha256(signed).digest(), signed)),)
    digest = hashlib.sha256(head)  # without a copy of large payloads
    for payload in payloads:
        digest.update(payload)
    return (b"".join((magic, digest.digest(), head)), *payloads)


def _joined(pieces: Callable[_Arguments, Sequence[bytes]]) -> Callable[_Arguments, bytes]:
    """Return a function that returns the pieces as one."""

    def join(*args: _Arguments.args, **kwargs: _Arguments.kwargs) -> bytes:
        return b"".join(pieces(*args, **kwargs))

    return join


encode_record = _joined(record_pieces)


def _compact(header: bytes, destinations: Sequence[tuple[int, int]], salt: bytes) -> bytes:
    """Return what a record of format 2 has between the links and the payload area."""
    flags, stored, size = _FORMAT_2, header, len(header)
    if _DEFLATED_FROM <= size <= _DEFLATED_TO and _HOLE not in header:
        deflate = _DEFLATE.copy()
        deflated = deflate.compress(header) + deflate.flush()
        if len(deflated) < size:
            flags, stored = flags | _DEFLATED, deflated
    if salt:
        flags, stored = flags | _SEALED | _SALTED_COUNTER, salt + stored
    length = len(stored) - len(salt)
    if not destinations:
        return _LENGTHS.pack(flags, length, size) + stored
    addresses = b"".join(_DESTINATION.pack(log, before) for log, before in destinations)
    count = len(destinations).to_bytes(2, "big")
    return b"".join((_LENGTHS.pack(flags | _DESTINED, length, size), count, addresses, stored))


@dataclass(slots=True)
class Record:
    """One record read back from the log, with a correct checksum."""

    sequence: int
    """Stream sequence."""
    link: bytes
    previous: bytes
    node: str
    time_ms: int
    """Time of its first event, Unix time in milliseconds."""
    part: int
    last: bool
    raw_events: list[dict[str, Any]]
    """The events as JSON objects, as they were written; an event of several sessions is replaced by
    the equivalent events of single sessions."""
    payload: memoryview
    """The payload area."""
    header: bytes
    """The JSON that has the events."""
    jumps: ClockJumps = NO_JUMPS
    """The jumps of the clock up to this record."""
    stored_at: str = ""
    """Time at which JetStream stored it, RFC 3339; empty if the reader did not ask."""
    salt: bytes = b""
    """The salt of its sealed contents."""
    salted_counter: bool = False
    """Whether the counters of these begin at the salt, as in all but the earlier layout."""
    sealed: dict[tuple[int, int], int] = field(default_factory=dict)
    """Begin and end of each part of the payload area that is sealed, with its key."""
    stored: memoryview = _NO_AREA
    """The payload area as it is stored; in ``payload``, fillers stand for sealed contents."""
    opened: frozenset[int] = frozenset()
    """The keys whose parts of ``payload`` were opened."""

    def open(self, key: KeyOf, cipher: CipherOf | None = None) -> None:
        """Open the sealed contents whose keys exist; ``cipher`` saves making their ciphers."""
        if not self.sealed:
            return
        opened = {number for number in self.sealed.values() if key(number) is not None}
        area = bytearray(self.payload)
        seal: AreaSeal = RecordSeal(self.salt, key)
        if self.salted_counter:
            seal = AreaSeal(self.salt, cipher or cipher_of(key))
        for (begin, end), number in self.sealed.items():
            if number in opened:
                area[begin:end] = seal.turned(number, begin, bytes(self.stored[begin:end]))
        self.payload, self.opened = memoryview(bytes(area)), frozenset(opened)

    @property
    def area(self) -> memoryview | SealedArea:
        """The payload area; its slices say what is sealed."""
        return SealedArea(self.part_of) if self.sealed else self.payload

    def part_of(self, begin: int, end: int) -> bytes:
        """Return a payload, or a block of properties, from the payload area.

        It is SealedBytes if the record has it sealed.
        """
        data = bytes(self.payload[begin:end])
        if self.sealed:
            number = self.sealed.get((begin, end)) or self.sealed.get(
                (begin + first_sealed(data), end)
            )
            if number:
                opened = number in self.opened
                return SealedBytes.of(data, number, opened=opened, time_ms=self.time_ms)
        return data

    @property
    def steady_ms(self) -> int:
        """Its time without the jumps of the clock: expiries and delays are measured with it."""
        return self.time_ms - self.jumps.total_ms

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield each event, validated and upcast, with the index of its first entry.

        Raises UnreadableEvent, or UnknownEvent, with the entry that cannot be read and the reason.
        """
        return parse_events(self.sequence, self.raw_events)

    def expand(self) -> None:
        """Replace events of turns by the equivalent events of single sessions."""
        if _TURN in self.header:
            self.raw_events = _of_sessions(self.raw_events)

    def payloads(self, event: MessagePublished | RetainedSnapshot | MessagesCarried) -> list[bytes]:
        """Return the payload of each message of one of the record's events."""
        if self.sealed:
            return [self.part_of(start, stop) for start, stop in pairwise(payload_bounds(event))]
        bounds = payload_bounds(event)
        first, area = bounds[0], self.payload
        if event.count == 1:  # the most common case
            return [bytes(area[first : bounds[1]])]
        if bounds[-1] - first > _LARGE * event.count:
            return [bytes(area[start:stop]) for start, stop in pairwise(bounds)]
        # Slices of bytes take a third of the time; small payloads are copied twice instead.
        data = bytes(area[first : bounds[-1]])
        return [data[at - first : end - first] for at, end in pairwise(bounds)]

    def distinct_blocks(self, event: WithBlocks) -> list[bytes]:
        """Return the distinct property blocks of one of the record's events."""
        return [self.part_of(start, stop) for start, stop in block_bounds(event)]

    def blocks(self, event: MessagePublished | RetainedSnapshot | MessagesCarried) -> list[bytes]:
        """Return the property block of each message of one of the record's events.

        Empty when none has any.
        """
        return spread_blocks(event, self.distinct_blocks(event)) if event.blocks else []

    def pieces(self, event: MessagePublished | RetainedSnapshot | MessagesCarried) -> list[bytes]:
        """Return an event's parts of the payload area: distinct blocks first, then payloads."""
        return [*self.distinct_blocks(event), *self.payloads(event)]


def is_intact(data: bytes) -> bool:
    """Return whether bytes are a record with a correct checksum, apart from its first four."""
    if len(data) < HEAD_SIZE + 4:
        return False
    return hashlib.sha256(memoryview(data)[_SIGNED_FROM:]).digest() == data[_LINK]


def check_record(sequence: int, data: bytes) -> int:
    """Check the checksum of a record; return the offset of its payload area.

    Raises CorruptLog when it is not a record, is truncated, or its checksum is wrong, and
    UnknownLogFormat when a later foldmq wrote it.
    """
    if len(data) < HEAD_SIZE + 4 or data[:3] != MAGIC:
        raise CorruptLog(sequence, "is not a foldmq record")
    if not 1 <= data[3] <= FORMAT:
        raise UnknownLogFormat(
            f"record {sequence} of the log has format {data[3]}, this foldmq reads formats 1 to "
            f"{FORMAT}: use the foldmq that wrote it, or a later one"
        )
    if not is_intact(data):
        raise CorruptLog(sequence, "has a wrong checksum")
    flags = data[HEAD_SIZE]
    if data[3] != format_of(data):
        raise CorruptLog(sequence, "has the version of another format")
    unknown = flags & ~_KNOWN_FLAGS or flags & (_SEALED | _SALTED_COUNTER) == _SALTED_COUNTER
    if flags & _FORMAT_2 and unknown:
        raise UnknownLogFormat(
            f"record {sequence} of the log has flags {flags:#x} that this foldmq does not know: "
            "use the foldmq that wrote it, or a later one"
        )
    return _json_bounds(data)[1]


def open_record(sequence: int, data: bytes) -> tuple[bytes, memoryview]:
    """Return the JSON and the payload area of a record; raises as :func:`check_record`.

    Fillers stand for sealed contents.
    """
    body = check_record(sequence, data)
    try:
        header = header_of(data)
        payload = memoryview(data)[body:]
        if salt_of(data):
            sealed = _sealed_in(data, orjson.loads(header), len(payload))
            payload = memoryview(covered(payload, sealed))
    except (ValueError, KeyError, TypeError):
        raise CorruptLog(sequence, _INVALID) from None
    return header, payload


def _sealed_in(data: bytes, fields: dict[str, Any], size: int) -> dict[tuple[int, int], int]:
    """Return the sealed parts of a record by the members of its JSON and its payload area's size.

    Raises ValueError, KeyError or TypeError.
    """
    flags = data[HEAD_SIZE]
    if not (flags & _FORMAT_2 and flags & _SEALED):
        return {}
    parts = fields["sealed"]
    read = parts_in if flags & _SALTED_COUNTER else parts_in_list
    return sealed_parts(read(parts), size)


def _of_sessions(raw_events: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return events of single sessions that are equivalent to those of turns."""
    return [event for raw in raw_events for event in expanded(raw)]


def decode_record(
    sequence: int, data: bytes, *, whole_turns: bool = False, stored_at: str = ""
) -> Record:
    """Return the record stored under a stream sequence; raises as :func:`check_record`.

    With ``whole_turns``, its ``raw_events`` may have events of turns: for the fold alone.
    ``stored_at`` is the time at which that was.
    """
    body = check_record(sequence, data)
    try:
        header = header_of(data)
        payload = stored = memoryview(data)[body:]
        fields = orjson.loads(header)
        if sealed := _sealed_in(data, fields, len(payload)):
            payload = memoryview(covered(payload, sealed))
        events = fields["events"]
        if type(events) is not list or not _OBJECTS.issuperset(map(type, events)):
            raise CorruptLog(sequence, _INVALID)
        if not whole_turns and _TURN in header:
            events = _of_sessions(events)
        return Record(
            sequence=sequence,
            link=link_of(data) if len(events) == 1 else data[_LINK],
            previous=previous_of(data),
            node=fields["node"],
            time_ms=fields["time"],
            part=fields["part"],
            last=fields["last"],
            raw_events=events,
            payload=payload,
            header=header,
            jumps=ClockJumps(*fields["jumps"]) if "jumps" in fields else NO_JUMPS,
            stored_at=stored_at,
            salt=salt_of(data),
            salted_counter=bool(sealed and data[HEAD_SIZE] & _SALTED_COUNTER),
            sealed=sealed,
            stored=stored,
        )
    except (ValueError, KeyError, TypeError):
        raise CorruptLog(sequence, _INVALID) from None


def payload_bounds(event: MessagePublished | RetainedSnapshot | MessagesCarried) -> list[int]:
    """Return the offsets in the payload area at which the messages of an event begin.

    The list has one more number than there are messages: the end of the last message.
    """
    if isinstance(event.sizes, int):
        size = event.sizes
        if not size:
            return [event.at] * (event.count + 1)
        return list(range(event.at, event.at + size * event.count + 1, size))
    return list(accumulate(event.sizes, initial=event.at))


class ChainChecker:
    """Checks the chain of records that are read in order."""

    __slots__ = ("link", "sequence")

    def __init__(self, sequence: int = 0, link: bytes = GENESIS) -> None:
        """Start after the record with this sequence and link (0: before the first one)."""
        self.sequence = sequence
        self.link = link

    @classmethod
    def before(cls, record: Record) -> ChainChecker:
        """Start in the middle of a log: this record is accepted as the next one."""
        return cls(record.sequence - 1, record.previous)

    def check(self, record: Record) -> None:
        """Accept the next record; raise CorruptLog when it does not follow the previous one."""
        if record.sequence != self.sequence + 1:
            raise CorruptLog(
                self.sequence + 1,
                f"is missing or cannot be read: record {record.sequence} follows",
            )
        if record.previous != self.link:
            raise CorruptLog(record.sequence, f"does not continue record {self.sequence}")
        self.sequence = record.sequence
        self.link = record.link
