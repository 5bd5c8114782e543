"""Which messages of the log a replay sends next: matching, permissions, bounds of a step.

Pure: it gets decoded records and the rules of a subscription, and knows no clock and no connection.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby
from math import inf
from typing import Final, NamedTuple, TypeVar

from actors.session.decisions.acknowledgements import PACKET_IDS
from actors.session.decisions.queueing import room, within
from eventstore.format.positions import Position, position, to_runs
from eventstore.format.positions import Run as PositionRun
from eventstore.log.message_store import Message
from eventstore.reading.publications import Publications
from projections.state.session import SessionState, SubscriptionState
from protocol.mqtt.topics import matches

Value = TypeVar("Value")

MESSAGES_AT_ONCE: Final = 1024
BYTES_AT_ONCE: Final = 256 * 1024
RECORDS_AT_ONCE: Final = 64
"""Messages, payload bytes and records of one step."""
_SHARED: Final = 4
"""What part of these messages and bytes a step has while other clients are active."""
_ENOUGH: Final = 4
"""Part of a step, or of a smaller window, for which it waits while messages are in flight."""
_SPARE, _SPARE_SHARE = 16, 4
"""What stays free of the Receive Maximum for other subscriptions of the client: at most so many,
and at most that part of it."""
_TOPICS, _LONG = 4096, 1024
"""Topics whose answer is cached, and bytes from which on a topic is not."""
_LAST_TOPICS: Final = 10_000
"""Topics of which a replay may send the last message."""
_LOOKED_AT_ONCE: Final = 512
"""Messages looked at together, after which the clock is read again."""


class LogRecord(NamedTuple):
    """A record of the log of which only the messages that take effect in it are left."""

    sequence: int
    time_ms: int
    publications: Sequence[Publications]
    size: int
    """Approximate memory in bytes."""
    lost: int = 0
    """First of the records that were given up, of which this is the last one; 0: it is none."""


class Run(NamedTuple):
    """Messages of one event that are sent."""

    publications: Publications
    numbers: Sequence[int]
    """Which of them."""
    qos: int
    """The QoS at which they are sent."""


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
        does_match = matches(self.topic_filter, raw.decode())
        if len(raw) < _LONG:
            self[raw] = does_match
        return does_match


class LastMessages:
    """Finds the last message of each topic up to a position, in records that are read in order."""

    __slots__ = ("_order", "complete", "places", "start", "through", "too_many")

    def __init__(self, start: Position, through: Position) -> None:
        self.start = start
        """The last position that counts."""
        self.through = through
        """The last position that was searched."""
        self.places: dict[bytes, tuple[int, Position]] = {}
        """The time and the position of the last message of each topic."""
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
                    self.places[topics[number]] = record.time_ms, positions[number]
        self.skip_to(position(record.sequence + 1, 0) - 1)
        self.too_many = len(self.places) > _LAST_TOPICS

    def skip_to(self, through: Position) -> None:
        """Go on after a position: what is before it was searched, or was cut off."""
        self.through = max(self.through, through)
        if self.through >= self.start and not self.complete:
            self.complete = True
            self._order = sorted(at for _, at in self.places.values())

    def leave_out(self, topics: Iterable[bytes]) -> None:
        """Leave out the messages on these topics, once all are known."""
        for topic in topics:
            del self.places[topic]
        self._order = sorted(at for _, at in self.places.values())
        self.places = {}

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


def keep_latest(logs: Sequence[LastMessages]) -> None:
    """Of the last messages on a topic in several logs, keep the latest alone.

    Of two at the same time it is that of the later log.
    """
    latest: dict[bytes, tuple[int, int]] = {}
    for number, log in enumerate(logs):
        for topic, (time_ms, _) in log.places.items():
            latest[topic] = max(latest.get(topic, (time_ms, number)), (time_ms, number))
    for number, log in enumerate(logs):
        log.leave_out([topic for topic in log.places if latest[topic][1] != number])


class Budget:
    """What a step may still send; ``room`` is the number of messages at QoS 1 and 2.

    ``shared``: other clients are active, steps are smaller then.
    """

    __slots__ = ("messages", "records", "room", "size")

    def __init__(self, room: int, *, shared: bool = False) -> None:
        part = _SHARED if shared else 1
        self.room = room
        self.messages = MESSAGES_AT_ONCE // part
        self.size = BYTES_AT_ONCE // part
        self.records = RECORDS_AT_ONCE


@dataclass(slots=True)
class Rules:
    """What a replay sends at present."""

    matches: TopicMatches
    qos: int
    """The granted QoS."""
    are_checked: Callable[[Publications], bool]
    """Returns whether one of these messages may have to be left out."""
    why_not: Callable[[Publications, int, int], str]
    """Returns the reason why a message, by its number, to be sent at a QoS, is left out; empty: it
    is sent."""
    until: Position | None = None
    """The last position that is read; None: there is none."""
    until_ms: int = 0
    """The last time that is read, Unix time in milliseconds; 0: there is none."""
    last: LastMessages | None = None
    """The only messages that are sent up to its start; None: all are."""
    start_ms: int = 0
    """Unix time in milliseconds before which records are skipped; 0 once the log has reached it."""
    before_ms: float = inf
    """Unix time in milliseconds of the first record that is left to a later step."""


@dataclass(slots=True)
class Step:
    """The outcome of a step."""

    through: Position
    """The last position that was read."""
    runs: list[Run] = field(default_factory=list)
    """The messages that are sent, in order."""
    sent: int = 0
    size: int = 0
    """Number of these messages, and their payload bytes."""
    numbered: int = 0
    """Number of those at QoS 1 and 2."""
    left_out: dict[str, int] = field(default_factory=dict)
    """Number of other messages that match, by the reason."""
    records: int = 0
    """Number of records that were read to their end."""
    no_room: bool = False
    """Whether the next message needs room that the client does not have."""
    ended: bool = False
    """Whether the end of the replay is reached."""
    interrupted: bool = False
    """Whether nothing more fits into the step."""
    lost: int = 0
    """``LogRecord.lost`` of the next record, at which the step ends; 0: it is none of those."""


def select(
    ahead: deque[LogRecord],
    through: Position,
    rules: Rules,
    budget: Budget,
    is_late: Callable[[], bool],
) -> Step:
    """Return what to send after a position; records that were read to their end leave ``ahead``.

    ``is_late`` is asked between records, and within long ones, whether the step has taken long
    enough. It also ends with the budget, from which is taken what it sends.
    """
    step = Step(through)
    looked = 0
    while ahead and not step.ended:
        record = ahead[0]
        begins, ends = position(record.sequence, 0), position(record.sequence + 1, 0) - 1
        if ends <= step.through:
            ahead.popleft()  # it was read before
            continue
        if record.time_ms >= rules.before_ms:
            break
        if record.lost and (rules.until is None or begins <= rules.until):
            step.lost, step.interrupted = record.lost, True
            break
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
            begin, stop = bisect_right(positions, step.through), len(positions)
            if rules.until is not None:
                stop = bisect_right(positions, rules.until)
            while begin < stop:
                end = min(stop, begin + _LOOKED_AT_ONCE)
                if not _take(step, publications, range(begin, end), rules, budget):
                    step.interrupted = True
                    return step
                looked += end - begin
                if looked >= _LOOKED_AT_ONCE:
                    looked = 0
                    if is_late():
                        step.interrupted = True
                        return step
                begin = end
        ahead.popleft()
        step.records += 1
        step.through = ends if rules.until is None else min(ends, rules.until)
        step.ended = step.through == rules.until
        budget.records -= 1
        if budget.records <= 0 or is_late():
            step.interrupted = True
            break
    return step


def _take(
    step: Step, publications: Publications, numbers: range, rules: Rules, budget: Budget
) -> bool:
    """Add some messages of an event to a step; return whether it may go on."""
    positions, topics, matching = publications.positions, publications.topics, rules.matches
    column = topics if len(topics) == len(numbers) else topics[numbers.start : numbers.stop]
    matched: Sequence[int] = numbers
    if not all(map(matching.__getitem__, set(column))):
        matched = [number for number in numbers if matching[topics[number]]]
    if rules.last is not None:
        left_out = rules.last.is_left_out
        matched = [number for number in matched if not left_out(positions[number])]
    qos = min(publications.qos, rules.qos)
    reasons: dict[int, str] = {}
    if matched and rules.are_checked(publications):
        why_not = rules.why_not
        reasons = {
            number: reason for number in matched if (reason := why_not(publications, number, qos))
        }
    candidates = [number for number in matched if number not in reasons] if reasons else matched
    free = budget.room if qos else budget.messages
    chosen = candidates[: min(free, budget.messages)]
    payloads = picked(publications.payloads, chosen) if chosen else ()
    size = sum(map(len, payloads))
    if size > budget.size:
        chosen = chosen[: within(payloads, budget.size)]
        size = sum(map(len, payloads[: len(chosen)]))
    stop = numbers.stop
    if len(chosen) < len(candidates):
        stop = candidates[len(chosen)]
        step.no_room = bool(qos) and len(chosen) == free
    for number, reason in reasons.items():
        if number < stop:
            step.left_out[reason] = step.left_out.get(reason, 0) + 1
    if stop > numbers.start:
        step.through = positions[stop - 1]
    if chosen:
        step.runs.append(Run(publications, chosen, qos))
        step.sent += len(chosen)
        step.size += size
        step.numbered += len(chosen) if qos else 0
        budget.room -= len(chosen) if qos else 0
        budget.messages -= len(chosen)
        budget.size -= size
    return stop == numbers.stop and budget.messages > 0 and budget.size > 0


def room_for(state: SessionState, held: SubscriptionState, window: int) -> int:
    """Return how many messages at QoS 1 and 2 may be sent; 0 also if that is not worth a step.

    Few messages are as many events as many are. While messages are in flight, their
    acknowledgements make more room.
    """
    free = room(state, held, window)
    if held.outstanding:
        enough = min(window, state.receive_maximum, MESSAGES_AT_ONCE) // _ENOUGH
        free = free if free >= enough else 0
    if len(state.subscriptions) > len(state.replays):
        spare = min(_SPARE, state.receive_maximum // _SPARE_SHARE)
        unused = min(PACKET_IDS, state.receive_maximum)
        unused -= len(state.inflight) + len(state.releasing)
        free = max(0, min(free, unused - spare))
    return free


def picked(column: Sequence[Value], numbers: Sequence[int]) -> Sequence[Value]:
    """Return the values with these ascending numbers."""
    if numbers[-1] - numbers[0] == len(numbers) - 1:
        return column[numbers[0] : numbers[-1] + 1]
    return [column[number] for number in numbers]


def message_of(publications: Publications, number: int) -> Message:
    """Return a message of an event."""
    return Message(
        publications.topics[number],
        publications.payloads[number],
        publications.blocks[number] if publications.blocks else b"",
        publications.expires[number] if publications.expires else 0,
        publications.retain,
        publications.session,
    )


def references(runs: Sequence[Run]) -> list[PositionRun]:
    """Return where messages were published, as the runs of an event."""
    ranges: list[range] = []
    for publications, numbers, _ in runs:
        refs = picked(publications.refs, numbers)
        if not isinstance(refs, range):
            return to_runs([ref for run in runs for ref in picked(run[0].refs, run[1])])
        if ranges and ranges[-1].stop == refs.start:
            ranges[-1] = range(ranges[-1].start, refs.stop)
        else:
            ranges.append(refs)
    encoded: list[PositionRun] = []
    for is_short, group in groupby(ranges, _is_short):
        if is_short:  # of events with a message each, which may have equal distances
            encoded += to_runs([*chain.from_iterable(group)])
        else:
            encoded += [run for refs in group for run in to_runs(refs)]
    return encoded


def _is_short(refs: range) -> bool:
    return len(refs) < 3
