"""The published messages that events refer to.

Events refer to messages by position; to send a message, its topic and payload are needed. Recent
messages are cached; others are read from the log, record by record, never message by message.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, NamedTuple

from eventstore.format.events import MessagePublished, WillArmed
from eventstore.format.node_events import MessagesCarried, RetainedSnapshot
from eventstore.format.positions import INDEX_BITS, Position, from_runs, position
from eventstore.format.stored_properties import expiries, expiries_of

if TYPE_CHECKING:
    from eventstore.format.records import Record


class Message(NamedTuple):
    """The message for a subscriber."""

    topic: bytes
    """UTF-8."""
    payload: bytes
    block: bytes = b""
    """Its properties (MQTT 5)."""
    expires: int = 0
    """Unix time in seconds at which it expires; 0: never."""
    retain: bool = False
    """Whether it was published with RETAIN 1."""
    publisher: str = ""
    """The session that published it; empty: not known."""


class StoredMessages(NamedTuple):
    """The messages of one MessagePublished event (or the will of a WillArmed event)."""

    first: Position
    """Position of the first message; the others follow it."""
    topics: Sequence[bytes]
    payloads: Sequence[bytes]
    size: int
    """Payload bytes of all messages."""
    blocks: Sequence[bytes] = ()
    """The properties of each (MQTT 5); empty when none has any."""
    expires: Sequence[int] = ()
    """Expiry of each, as in Message; empty when none expires."""
    retain: bool = False
    """Whether they were published with RETAIN 1."""
    publishers: Sequence[str] = ()
    """The distinct sessions that published them; empty: not known."""
    publisher_of: Sequence[int] = ()
    """For each message the index of its publisher; empty when each message has the next publisher,
    or all have the only one."""

    def publisher(self, number: int) -> str:
        """Return the session that published one of the messages; empty if it is not known."""
        publishers = self.publishers
        if self.publisher_of:
            return publishers[self.publisher_of[number]]
        if len(publishers) > 1:
            return publishers[number]
        return publishers[0] if publishers else ""

    def message(self, number: int) -> Message:
        """Return one of the messages."""
        return Message(
            self.topics[number],
            self.payloads[number],
            self.blocks[number] if self.blocks else b"",
            self.expires[number] if self.expires else 0,
            self.retain,
            self.publisher(number),
        )


_OVERHEAD = 100
"""Approximate memory overhead of a message in bytes, without its payload."""
_BATCH_OVERHEAD = 400
"""Memory overhead of a batch in bytes, without its messages."""


class MessageStore:
    """Messages by position: a bounded cache over the log.

    ``limit`` bounds the cache in bytes. A record that was just loaded stays until its reader has
    used it: eviction is by age of the last insertion, and one insertion alone may exceed the
    limit.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.size = 0
        """Approximate memory of the cached messages in bytes."""
        self._records: OrderedDict[int, list[StoredMessages]] = OrderedDict()

    def __len__(self) -> int:
        """Return the number of records with cached messages."""
        return len(self._records)

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0

    def add(self, stored: StoredMessages) -> None:
        """Cache messages."""
        sequence = stored.first >> INDEX_BITS
        held = self._records.get(sequence)
        if held is None:
            self._records[sequence] = [stored]
        elif held[-1].first < stored.first:
            held.append(stored)
        else:
            # A message that the log repeats is added again each time its repetition is read.
            at = bisect_left(held, stored.first, key=_first)
            if held[at].first == stored.first:
                if len(held[at].payloads) >= len(stored.payloads):
                    return
                self._forget([held.pop(at)])
            held.insert(at, stored)
        self.size += _footprint(stored)
        while self.size > self._limit and len(self._records) > 1:
            self._forget(self._records.popitem(last=False)[1])

    def clear(self) -> None:
        """Drop all messages."""
        self._records.clear()
        self.size = 0

    def add_record(self, record: Record) -> None:
        """Cache the messages of a record of the log."""
        self.put(record.sequence, messages_of(record))

    def put(self, sequence: int, messages: Iterable[StoredMessages]) -> None:
        """Cache all messages of the record with this sequence."""
        # The cache may contain only a part of the record: the messages added since an eviction.
        self._forget(self._records.pop(sequence, ()))
        for stored in messages:
            self.add(stored)

    def get(self, ref: Position) -> Message | None:
        """Return a message, or None when it is not cached and has to be read from the log."""
        held = self._records.get(ref >> INDEX_BITS)
        if not held:
            return None
        stored = held[bisect_right(held, ref, key=_first) - 1]
        offset = ref - stored.first
        if not 0 <= offset < len(stored.payloads):
            return None
        if not stored.blocks and not stored.retain and len(stored.publishers) == 1:
            return Message(
                stored.topics[offset], stored.payloads[offset], b"", 0, False, stored.publishers[0]
            )
        return stored.message(offset)

    def _forget(self, dropped: Iterable[StoredMessages]) -> None:
        self.size -= sum(_footprint(stored) for stored in dropped)


def _footprint(stored: StoredMessages) -> int:
    size = stored.size + _OVERHEAD * len(stored.payloads) + _BATCH_OVERHEAD
    return size + sum(map(len, stored.blocks)) if stored.blocks else size


def messages_of(record: Record) -> list[StoredMessages]:
    """Return the messages (and wills) in a record, including repeated ones."""
    messages: list[StoredMessages] = []
    base = position(record.sequence, 0)
    for index, event in record.events():
        if isinstance(event, WillArmed):
            payload = record.part_of(event.at, event.at + event.size)
            block = record.distinct_blocks(event)
            messages.append(
                StoredMessages(base + index, [event.topic.encode()], [payload], event.size, block)
            )
            continue
        if not isinstance(event, (MessagePublished, MessagesCarried, RetainedSnapshot)):
            continue
        if isinstance(event, RetainedSnapshot) and event.session is not None:
            continue
        topics = [topic.encode() for topic in event.topics]
        if not isinstance(event, RetainedSnapshot):
            topics = [topics[at] for at in event.which] if event.which else topics * event.count
        payloads = record.payloads(event)
        size = sum(map(len, payloads))
        stored = StoredMessages(base + index, topics, payloads, size, *properties_of(record, event))
        if isinstance(event, MessagePublished):
            stored = stored._replace(retain=event.retain, publishers=(event.session,))
        else:
            stored = stored._replace(publishers=event.publishers, publisher_of=event.publisher_of)
        if isinstance(event, MessagesCarried):
            retained = frozenset(from_runs(event.as_retained))
            messages += _as_before(from_runs(event.refs), stored, retained)
        else:
            messages.append(stored)
    return messages


def retained_when_released(record: Record) -> Iterator[tuple[Position, Message]]:
    """Yield the messages at QoS 2 of a record that are retained with their PUBREL."""
    base = position(record.sequence, 0)
    waiting: set[Position] = set()
    for index, event in record.events():
        if isinstance(event, MessagePublished) and event.retain and event.qos == 2:
            waiting.update(range(base + index, base + index + event.count))
        elif isinstance(event, MessagesCarried):
            waiting.update(from_runs(event.waiting))
    if not waiting:
        return
    for stored in messages_of(record):
        for number in range(len(stored.payloads)):
            ref = stored.first + number
            if ref in waiting:
                yield ref, stored.message(number)


def properties_of(
    record: Record, event: MessagePublished | MessagesCarried | RetainedSnapshot
) -> tuple[list[bytes], list[int]]:
    """Return the blocks of an event's messages, and their expiries; empty where none has any."""
    blocks = record.blocks(event)
    if not blocks:
        return [], []
    if isinstance(event, MessagePublished):
        return blocks, expiries(blocks, record.steady_ms)
    return blocks, expiries_of(event.expires, event.count)


def _as_before(
    refs: list[Position], stored: StoredMessages, retained: AbstractSet[Position]
) -> Iterator[StoredMessages]:
    """Yield repeated messages under their previous positions, adjacent ones together.

    ``retained`` are the positions of the messages that were published with RETAIN 1.
    """
    start = 0
    for stop in range(1, len(refs) + 1):
        goes_on = stop < len(refs) and refs[stop] == refs[stop - 1] + 1
        if goes_on and (refs[stop] in retained) == (refs[start] in retained):
            continue
        part = slice(start, stop)
        chosen = stored.payloads[part]
        yield StoredMessages(
            refs[start],
            stored.topics[part],
            chosen,
            sum(map(len, chosen)),
            stored.blocks[part],
            stored.expires[part],
            refs[start] in retained,
            stored.publishers,
            stored.publisher_of[part],
        )
        start = stop


def _first(stored: StoredMessages) -> Position:
    return stored.first
