"""Which messages of the log a replay sends next: matching, permissions, bounds of a step.

Pure: it gets decoded records and the rules of a subscription, and knows no clock and no connection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.format.positions import Position, position
from eventstore.log.message_store import Message
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from collections import deque
    from collections.abc import Callable, Sequence

    from eventstore.reading.publications import Publications

MESSAGES_AT_ONCE: Final = 256
BYTES_AT_ONCE: Final = 64 * 1024
RECORDS_AT_ONCE: Final = 64
"""Messages, payload bytes and records of one step."""
_TOPICS: Final = 4096
"""Topics whose answer is cached."""
_LAST_TOPICS: Final = 10_000
"""Topics of which a replay may send the last message."""
_LOOKED_AT_ONCE: Final = 512
"""Messages after which the clock is read again."""


class LogRecord(NamedTuple):
    """A record of the log of which only the messages that take effect in it are left."""

    sequence: int
    time_ms: int
    publications: Sequence[Publications]
    size: int
    """Approximate memory in bytes."""


class Entry(NamedTuple):
    """A message to be sent."""

    at: Position
    """Where it took effect."""
    ref: Position
    """Where it was published."""
    qos: int
    """The QoS at which it is sent."""
    time_ms: int
    message: Message


class TopicMatches(dict[bytes, bool]):
    """Whether raw topics match a filter; a miss is computed."""

    __slots__ = ("topic_filter",)

    def __init__(self, topic_filter: str) -> None:
        super().__init__()
        self.topic_filter = topic_filter

    def __missing__(self, raw: bytes) -> bool:
        """Compute and cache the answer."""
        if len(self) >= _TOPICS:
            self.clear()
        found = self[raw] = matches(self.topic_filter, raw.decode())
        return found


class LastMessages:
    """Finds the last message of each topic up to a position, in records that are read in order."""

    __slots__ = ("_order", "_places", "complete", "start", "through", "too_many")

    def __init__(self, start: Position, through: Position) -> None:
        self.start = start
        """The last position that counts."""
        self.through = through
        """The last position that was searched."""
        self._places: dict[bytes, Position] = {}
        """The last position of each topic."""
        self._order: list[Position] = []
        """The same positions in order, once all are known."""
        self.complete = through >= start
        """Whether everything was searched."""
        self.too_many = False
        """Whether there are more topics than it may hold."""

    def add(self, record: LogRecord, matching: TopicMatches) -> None:
        """Search the next record."""
        if self.complete:
            return
        for publications in record.publications:
            positions, topics = publications.positions, publications.topics
            for number in range(bisect_right(positions, self.through), len(positions)):
                if positions[number] > self.start:
                    break
                if matching[topics[number]]:
                    self._places[topics[number]] = positions[number]
        self.skip_to(position(record.sequence + 1, 0) - 1)
        self.too_many = len(self._places) > _LAST_TOPICS

    def skip_to(self, through: Position) -> None:
        """Go on after a position: what is before it was searched, or was cut off."""
        self.through = max(self.through, through)
        if self.through >= self.start and not self.complete:
            self.complete = True
            self._order = sorted(self._places.values())
            self._places = {}

    def is_left_out(self, at: Position) -> bool:
        """Return whether the message at a position is not the last one of its topic."""
        if at > self.start:
            return False
        number = bisect_left(self._order, at)
        return number >= len(self._order) or self._order[number] != at

    def after(self, cursor: Position) -> Position:
        """Return the position up to which there is nothing to send after a cursor."""
        number = bisect_right(self._order, cursor)
        following = self._order[number] - 1 if number < len(self._order) else self.start
        return max(cursor, following)


@dataclass(slots=True)
class Rules:
    """What a replay sends at present."""

    matches: TopicMatches
    qos: int
    """The granted QoS."""
    why_not: Callable[[Message, int, Publications], str]
    """Returns the reason why a message, to be sent at a QoS, is left out; empty: it is sent."""
    until: Position | None = None
    """The last position that is read; None: there is none."""
    until_ms: int = 0
    """The last time that is read, Unix time in milliseconds; 0: there is none."""
    last: LastMessages | None = None
    """The only messages that are sent up to its start; None: all are."""
    start_ms: int = 0
    """Unix time in milliseconds before which records are skipped; 0 once the log has reached it."""


@dataclass(slots=True)
class Step:
    """The outcome of a step."""

    through: Position
    """The last position that was read."""
    entries: list[Entry] = field(default_factory=list)
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of other messages that match, by the reason."""
    records: int = 0
    """Number of records that were read to their end."""
    no_room: bool = False
    """Whether the next message needs room that the client does not have."""
    ended: bool = False
    """Whether the end of the replay is reached."""


def select(
    ahead: deque[LogRecord],
    through: Position,
    rules: Rules,
    room: int,
    is_late: Callable[[], bool],
) -> Step:
    """Return what to send after a position; records that were read to their end leave ``ahead``.

    ``room`` is the number of messages at QoS 1 and 2 that may be sent. ``is_late`` is asked between
    records, and within long ones, whether the step has taken long enough. It also ends at the
    bounds of this module.
    """
    step = Step(through)
    size = looked = 0
    while ahead and not step.ended:
        record = ahead[0]
        begins, ends = position(record.sequence, 0), position(record.sequence + 1, 0) - 1
        if ends <= step.through:
            ahead.popleft()  # it was read before
            continue
        if record.time_ms >= rules.start_ms:
            rules.start_ms = 0
        else:
            ahead.popleft()
            step.through, step.records = ends, step.records + 1
            continue
        if (rules.until_ms and record.time_ms > rules.until_ms) or (
            rules.until is not None and begins > rules.until
        ):
            step.ended = True
            break
        for publications in record.publications:
            positions = publications.positions
            for number in range(bisect_right(positions, step.through), len(positions)):
                at = positions[number]
                if rules.until is not None and at > rules.until:
                    break
                looked += 1
                if not looked % _LOOKED_AT_ONCE and is_late():
                    return step
                topic = publications.topics[number]
                if not rules.matches[topic] or (
                    rules.last is not None and rules.last.is_left_out(at)
                ):
                    step.through = at
                    continue
                message = message_of(publications, number)
                qos = min(publications.qos, rules.qos)
                reason = rules.why_not(message, qos, publications)
                if reason:
                    step.left_out[reason] = step.left_out.get(reason, 0) + 1
                    step.through = at
                    continue
                if qos and not room:
                    step.no_room = True
                    return step
                room -= bool(qos)
                entry = Entry(at, publications.refs[number], qos, publications.time_ms, message)
                step.entries.append(entry)
                step.through = at
                size += len(message.payload)
                if len(step.entries) >= MESSAGES_AT_ONCE or size >= BYTES_AT_ONCE:
                    return step
        ahead.popleft()
        step.records += 1
        step.through = ends if rules.until is None else min(ends, rules.until)
        step.ended = step.through == rules.until
        if step.records >= RECORDS_AT_ONCE or is_late():
            break
    return step


def message_of(publications: Publications, number: int) -> Message:
    """Return one of the messages."""
    return Message(
        publications.topics[number],
        publications.payloads[number],
        publications.blocks[number] if publications.blocks else b"",
        publications.expires[number] if publications.expires else 0,
        publications.retain,
        publications.session,
    )
