"""Records: many events in one JetStream message.

A record consists of, in this order (integers big-endian):

=====  ==========================================================================
bytes  content
=====  ==========================================================================
4      magic ``FMQ`` and the format version
32     SHA-256 of everything that follows: the checksum, and this record's link
32     the link of the record before it (zeros for the first): the hash chain
4      length of the JSON header
n      JSON: node, time, part, last, jumps (from the first jump of the clock on), events
rest   the payloads of the messages, one after the other, as raw bytes; the blocks of properties
       of an event precede its payloads (``stored_properties``)
=====  ==========================================================================

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
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import orjson

from eventstore.errors import CorruptLog, UnknownLogFormat
from eventstore.format.event_json import json_object
from eventstore.format.fast_parse import parse_events
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.stored_properties import block_bounds, spread_blocks
from eventstore.format.turn_expansion import expanded

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from eventstore.format.event_parsing import Event, LogEvent
    from eventstore.format.events import MessagePublished
    from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
    from eventstore.format.stored_properties import WithBlocks

MAGIC: Final = b"FMQ\x01"
GENESIS = bytes(32)
"""The link of the predecessor in the first record of a log."""

_HEAD = struct.Struct(">4s32s32sI")
HEADER_FROM = _HEAD.size
"""Offset of the JSON header in a record."""
_SIGNED_FROM = 36
"""Offset from which the digest covers the record: everything after the digest itself."""
_LINK, _PREVIOUS, _LENGTH = slice(4, 36), slice(36, 68), slice(68, 72)
_LARGE = 16 * 1024
"""Mean payload size in bytes from which each payload is hashed separately."""
_OBJECTS = frozenset({dict})
_TURN = b'"e":"Turn'
"""Prefix of the type of an event of several sessions."""
_HOLE = b'"e":"LogSalvaged"'


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
    body = HEADER_FROM + int.from_bytes(data[_LENGTH], "big")
    if data.find(_HOLE, HEADER_FROM, body) >= 0:
        try:
            return _link(data, orjson.loads(data[HEADER_FROM:body])["events"])
        except (ValueError, KeyError, TypeError):
            pass
    return data[_LINK]


def _link(data: bytes, events: list[dict[str, Any]]) -> bytes:
    """Return the link of a record with these events."""
    if len(events) == 1 and events[0].get("e") == "LogSalvaged" and events[0]["link"]:
        return bytes.fromhex(events[0]["link"])
    return data[_LINK]


def previous_of(data: bytes) -> bytes:
    """Return the link of the record that this encoded record continues."""
    return data[_PREVIOUS]


def encode_record(
    *,
    previous: bytes,
    node: str,
    time_ms: int,
    events: Sequence[LogEvent],
    payloads: Sequence[bytes],
    part: int = 0,
    last: bool = True,
    jumps: ClockJumps = NO_JUMPS,
) -> bytes:
    """Return the bytes of a record; see :func:`record_pieces` for the arguments."""
    return b"".join(
        record_pieces(previous, node, time_ms, events, payloads, part, last=last, jumps=jumps)
    )


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
) -> Sequence[bytes]:
    """Return the bytes of a record in pieces; the first one contains the whole head.

    Large payloads are separate pieces: they are not copied. ``previous`` is the link of the record
    before it, ``time_ms`` Unix time in milliseconds, ``payloads`` the payload area in pieces, in
    the order in which the events refer to it.
    """
    fields: dict[str, Any] = {
        "node": node,
        "time": time_ms,
        "part": part,
        "last": last,
    }
    if jumps.record:
        fields["jumps"] = list(jumps)
    fields["events"] = list(map(json_object, events))
    header = orjson.dumps(fields)
    head = b"".join((previous, len(header).to_bytes(4, "big"), header))
    if sum(map(len, payloads)) < _LARGE * len(payloads):
        signed = b"".join((head, *payloads))
        return (b"".join((MAGIC, hashlib.sha256(signed).digest(), signed)),)
    digest = hashlib.sha256(head)  # without a copy of large payloads
    for payload in payloads:
        digest.update(payload)
    return (b"".join((MAGIC, digest.digest(), head)), *payloads)


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
    jumps: ClockJumps = NO_JUMPS
    """The jumps of the clock up to this record."""

    @property
    def steady_ms(self) -> int:
        """Its time without the jumps of the clock: expiries and delays are measured with it."""
        return self.time_ms - self.jumps.total_ms

    def events(self) -> Iterator[tuple[int, Event]]:
        """Yield each event, validated and upcast, with the index of its first entry.

        Raises UnreadableEvent, or UnknownEvent, with the entry that cannot be read and the reason.
        """
        return parse_events(self.sequence, self.raw_events)

    def payloads(self, event: MessagePublished | RetainedSnapshot | MessagesCarried) -> list[bytes]:
        """Return the payload of each message of one of the record's events."""
        area = self.payload
        return [bytes(area[start:stop]) for start, stop in pairwise(payload_bounds(event))]

    def distinct_blocks(self, event: WithBlocks) -> list[bytes]:
        """Return the distinct property blocks of one of the record's events."""
        area = self.payload
        return [bytes(area[start:stop]) for start, stop in block_bounds(event)]

    def blocks(self, event: MessagePublished | RetainedSnapshot | MessagesCarried) -> list[bytes]:
        """Return the property block of each message of one of the record's events.

        Empty when none has any.
        """
        return spread_blocks(event, self.distinct_blocks(event)) if event.blocks else []

    def pieces(self, event: MessagePublished | RetainedSnapshot | MessagesCarried) -> list[bytes]:
        """Return an event's parts of the payload area: distinct blocks first, then payloads."""
        return [*self.distinct_blocks(event), *self.payloads(event)]


def check_record(sequence: int, data: bytes) -> int:
    """Check the checksum of a record; return the offset of its payload area.

    Raises CorruptLog when it is not a record, is truncated, or its checksum is wrong, and
    UnknownLogFormat when a later foldmq wrote it.
    """
    if len(data) < _HEAD.size or data[:3] != MAGIC[:3]:
        raise CorruptLog(sequence, "is not a foldmq record")
    magic, digest, _, header_size = _HEAD.unpack_from(data)
    if magic != MAGIC:
        raise UnknownLogFormat(
            f"record {sequence} of the log has format {magic[3]}, this foldmq reads format "
            f"{MAGIC[3]}: use the foldmq that wrote it, or a later one"
        )
    if hashlib.sha256(memoryview(data)[_SIGNED_FROM:]).digest() != digest:
        raise CorruptLog(sequence, "has a wrong checksum")
    return _HEAD.size + int(header_size)


def decode_record(sequence: int, data: bytes, *, whole_turns: bool = False) -> Record:
    """Return the record stored under a stream sequence; raises as :func:`check_record`.

    With ``whole_turns``, its ``raw_events`` may have events of turns: for the fold alone.
    """
    body = check_record(sequence, data)
    view = memoryview(data)
    try:
        header = orjson.loads(view[HEADER_FROM:body])
        events = header["events"]
        if type(events) is not list or not _OBJECTS.issuperset(map(type, events)):
            raise CorruptLog(sequence, "has an invalid header")
        if not whole_turns and _TURN in data[HEADER_FROM:body]:
            events = [one for raw in events for one in expanded(raw)]
        return Record(
            sequence=sequence,
            link=_link(data, events),
            previous=previous_of(data),
            node=header["node"],
            time_ms=header["time"],
            part=header["part"],
            last=header["last"],
            raw_events=events,
            payload=view[body:],
            jumps=ClockJumps(*header["jumps"]) if "jumps" in header else NO_JUMPS,
        )
    except (ValueError, KeyError, TypeError):
        raise CorruptLog(sequence, "has an invalid header") from None


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
