"""Records that need not wake the brokers of other logs.

A record goes to another log at once if it may concern it. The records before it, of which that log
has to take nothing unless one of its subscriptions matches, are *skipped*: for these it gets the
end of the chain and the topics of the messages, and decides itself, with its own subscriptions.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple

import orjson

from actors.exchange.taken_messages import (
    Acknowledged,
    TakenMessages,
    effects_in,
)
from actors.exchange.unwanted_topics import BoundedTopics
from eventstore.format.events import LOG_SESSION
from eventstore.format.records import GENESIS, Record, decode_record

if TYPE_CHECKING:
    from eventstore.format.positions import Position
    from eventstore.log.pending_record import PendingRecord

PUSHED_MOST: Final = 64 * 1024
"""Bytes of a record from which the other brokers read it from the log."""
HELD_SECONDS: Final = 0.1
"""Longest time for which a record is held back: a new subscription may get messages that are older
than it by so much."""
HELD_RECORDS: Final = 1024
"""Maximum number of records that are held back."""
_BYTES = 256 * 1024
"""Maximum number of bytes of their topics."""
_HEAD = struct.Struct(">QQQQ?32s32sI")
"""First and last skipped record, the record that follows, position, whether there is more than
positions, links before and after, and size of the topics."""


class Skipped(NamedTuple):
    """Consecutive records of whole turns with effects for matching subscriptions alone."""

    first: int
    last: int
    previous: bytes
    """Link of the record before the first one."""
    link: bytes
    """Link of the last one."""
    topics: Sequence[bytes]
    """The topics of the messages that take effect in them, each once."""
    more: bool
    """Whether they have more than positions of other logs."""
    followed: Position
    """Position up to which their log has taken the one that gets this; 0: they do not say."""


def encode_push(skipped: Skipped | None, sequence: int, record: bytes) -> bytes:
    """Return a message with skipped records and the record after them.

    If that is empty, ``sequence`` is the last record that is stored.
    """
    if skipped is None:
        return _HEAD.pack(0, 0, sequence, 0, False, GENESIS, GENESIS, 0) + record
    first, end, previous, link, topics, more, followed = skipped
    names = orjson.dumps([topic.decode() for topic in topics])
    head = _HEAD.pack(first, end, sequence, followed, more, previous, link, len(names))
    return b"".join((head, names, record))


def decode_push(data: bytes) -> tuple[Skipped | None, int, bytes]:
    """Return what :func:`encode_push` got; raises ValueError for anything else."""
    try:
        first, through, sequence, followed, more, previous, link, size = _HEAD.unpack_from(data)
        end = _HEAD.size + size
        if not first:
            return None, sequence, data[end:]
        names = orjson.loads(data[_HEAD.size : end])
        topics = [name.encode() for name in names]
    except (struct.error, AttributeError, TypeError) as error:
        raise ValueError(str(error)) from None
    return Skipped(first, through, previous, link, topics, more, followed), sequence, data[end:]


class _HeldRecord(NamedTuple):
    """A record of this log that some other logs were not sent."""

    sequence: int
    previous: bytes
    link: bytes
    topics: Sequence[bytes]
    more: bool
    followed: Mapping[str, Position]


def _held(sequence: int, data: bytes) -> _HeldRecord | None:
    """Return what others must know to skip a record; None: it may concern all of them."""
    record = decode_record(sequence, data)
    if record.part or not record.last:
        return None
    topics: dict[bytes, None] = {}
    followed: dict[str, Position] = {}
    for effect in effects_in(record, 0, ""):
        if isinstance(effect, TakenMessages) and not effect.retain:
            if effect.live:
                topics.update(dict.fromkeys(effect.topics))
        elif isinstance(effect, Acknowledged):
            followed[effect.log] = effect.through
        else:  # QoS 2 messages, too, which others keep until they are released
            return None
    if _assigns(record):
        return None
    more = any(raw["e"] != "Followed" for raw in record.raw_events)
    return _HeldRecord(sequence, record.previous, record.link, [*topics], more, followed)


def _assigns(record: Record) -> bool:
    """Return whether a record assigns messages of a shared subscription to another log."""
    return any(
        raw["e"] == "Assigned" and raw["member"].startswith(LOG_SESSION)
        for raw in record.raw_events
    )


class RecordPushes:
    """Passes the records of this log on, each when it is on disk.

    ``push`` sends a message of at most ``largest`` bytes to one log, and returns False if that
    fails; ``announce`` sends sequence and bytes of a record to all. ``after`` calls a function
    after some seconds.
    """

    def __init__(
        self,
        others: Iterable[str],
        durable: int,
        push: Callable[[str, bytes], bool],
        largest: int,
        announce: Callable[[int, bytes], object],
        after: Callable[[float, Callable[[], None]], object],
    ) -> None:
        self._push = push
        self._largest = largest
        self._announce = announce
        self._after = after
        self._due = False
        """Whether what is held back will be sent."""
        self._held: deque[_HeldRecord] = deque()
        """Consecutive records up to the last one, of which some log was not sent all."""
        self._held_bytes = 0
        self._sent = dict.fromkeys(others, durable)
        """The last record that each other log was sent, or that it skips."""
        self.unwanted = {name: BoundedTopics() for name in self._sent}
        """The topics to which no subscription of another log matches."""
        self.deaf = set(self._sent)
        """The logs that have reported no topics lately: with one, all records are announced.
        Brokers of earlier versions report none, and do not hear what is sent to them alone."""
        self._last = durable
        self.at_once_through = 0
        """The last record that others wait for, whatever is in it."""

    def stored(self, record: PendingRecord) -> None:
        """Pass the next record on to those that it may concern."""
        sequence, size = record.sequence, record.size
        data = record.data if size <= PUSHED_MOST else b""
        skippable = None
        if data and not self.deaf and sequence > self.at_once_through:
            skippable = _held(sequence, data)
        contiguous, self._last = sequence == self._last + 1, sequence
        if skippable is None or not contiguous:
            self._send_to_all(sequence, data)
            return
        topics = skippable.topics
        self._held.append(skippable)
        self._held_bytes += sum(map(len, topics))
        concerned = [
            name
            for name, unwanted in self.unwanted.items()
            if not unwanted.topics.issuperset(topics)
        ]
        if len(concerned) == len(self._sent):
            self._send_to_all(sequence, data)
            return
        for name in concerned:
            self._send(name, sequence, data)
        self._forget()
        if self._is_full():
            self.flush()

    def deafen(self, name: str) -> None:
        """Announce all records from now on: a log reports no topics any more."""
        self.deaf.add(name)
        self.unwanted[name].clear()
        self._send_to_all(self._last, b"")

    def _flush_due(self) -> None:
        self._due = False
        self.flush()

    def flush(self) -> None:
        """Tell the other logs the topics of the records that are held back."""
        for name in self._behind(self._last):
            self._send(name, self._last + 1, b"")
        self._forget()
        if self._is_full():
            self._send_to_all(self._last, b"")

    def _is_full(self) -> bool:
        return len(self._held) >= HELD_RECORDS or self._held_bytes > _BYTES

    def _behind(self, sequence: int) -> list[str]:
        """Return the logs that were not sent all records up to one."""
        return [name for name, sent in self._sent.items() if sent < sequence]

    def _send_to_all(self, sequence: int, data: bytes) -> None:
        for name in self._behind(sequence - 1):
            self._send(name, sequence, b"")
        self._announce(sequence, data)
        self._sent = dict.fromkeys(self._sent, sequence)
        self._held.clear()
        self._held_bytes = 0

    def _send(self, name: str, sequence: int, data: bytes) -> None:
        """Send a log a record, if it is there, and what it skips before it.

        If that is too large, the log is only sent the position, and reads the records.
        """
        end = sequence if data else sequence - 1
        message = encode_push(self._skipped(name, sequence - 1), end, data)
        if len(message) > self._largest:
            message = encode_push(None, end, b"")
        if self._push(name, message):
            self._sent[name] = end

    def _skipped(self, name: str, through: int) -> Skipped | None:
        """Return what a log skips up to a record; None: nothing."""
        if not self._held or self._sent[name] >= through:
            return None
        begin = max(0, self._sent[name] + 1 - self._held[0].sequence)
        records = [*islice(self._held, begin, through + 1 - self._held[0].sequence)]
        if not records:
            return None
        topics: dict[bytes, None] = {}
        followed: Position = 0
        for record in records:
            topics.update(dict.fromkeys(record.topics))
            followed = record.followed.get(name, followed)
        first, end = records[0], records[-1]
        more = any(record.more for record in records)
        return Skipped(
            *(first.sequence, end.sequence, first.previous, end.link, [*topics], more, followed)
        )

    def _forget(self) -> None:
        """Drop records that all logs were sent; the others will be sent soon."""
        low = min(self._sent.values(), default=self._last)
        while self._held and self._held[0].sequence <= low:
            self._held_bytes -= sum(map(len, self._held.popleft().topics))
        if self._held and not self._due:
            self._due = True
            self._after(HELD_SECONDS, self._flush_due)
