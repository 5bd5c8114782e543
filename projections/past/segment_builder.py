"""Builds segments of an index from the records of a log, and the states that they contain."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.events import (
    InboundReplaced,
    MessagePublished,
    Released,
    Subscribed,
    SubscriptionDenied,
)
from eventstore.format.node_events import CheckpointBegun, CheckpointCompleted
from eventstore.format.positions import (
    INDEX_BITS,
    MAX_INDEX,
    Position,
    from_runs,
    position,
    to_runs,
)
from eventstore.format.records import ChainChecker, Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.keys import (
    CHECKS,
    DROPPED,
    EFFECT,
    LIFECYCLE,
    RARE,
    REFERRED,
    RETAINED_EXPIRED,
    SESSION,
    STATES,
    TOPIC,
    group_key,
    pack_sequences,
    states_due,
)
from eventstore.reading.log_index import LogIndex, SavedState
from eventstore.reading.segment import SegmentHead
from projections.past.message_story import topic_of
from projections.past.subscriber_state import DeniedFilters
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency
from projections.state.single_session import SessionFold
from projections.state.snapshot import decode_session, encode_session

RARE_EVENTS: Final = frozenset(
    {
        "CheckpointBegun",
        "CheckpointCompleted",
        "LimitsApplied",
        "LogSalvaged",
        "MessagesCarried",
        "RetainedSnapshot",
    }
)
_LIFECYCLE: Final = frozenset(
    {"SessionOpened", "SessionClosed", "SessionExpired", "SessionSnapshot", "Redelivered"}
)
_LINK_DIGITS: Final = 8
_UNRELEASED: Final = 65_536
"""Number of messages at QoS 2 whose topics are remembered until they are released."""
_HELD: Final = 2_000
"""Number of unchanged sessions that stay in memory."""
_NEVER: Final = 1 << 62
"""A position after every event."""


class SegmentBuilder:
    """Collects the content of a segment from the records that follow the index.

    Parts of a turn are held back until the turn is complete, or known to be void.
    """

    def __init__(self, stream: str, begin: int, index: LogIndex, head: SegmentHead | None):
        """Continue after the last segment, whose head is ``head``, or begin with record ``begin``.

        ``index`` is the index so far.
        """
        self._stream = stream
        self._whole: Position = 0
        if head is not None:
            begin, self._whole = head.last + 1, head.whole
        elif begin > 1:
            self._whole = -1
        self._states = _StateCache(index, self._whole)
        self._begun: Position | None = None
        self._previous = head.link if head is not None else ""
        self._turns = TurnAssembler()
        self._chain: ChainChecker | None = None
        if head is not None:
            self._chain = ChainChecker(head.last, bytes.fromhex(head.link))
        self._lists: dict[str, list[int]] = {}
        self._references: dict[str, list[Any]] = {}
        self._checks: dict[str, list[int | str]] = {}
        self._unreleased: dict[Position, str] = {}
        """Message at QoS 2 -> its topic: the latest ones that were seen."""
        self._first = begin
        self._began_ms = 0
        self._link = ""
        self.taken = begin - 1
        """Stream sequence of the last processed record."""
        self.next = begin
        """Stream sequence of the first record not included: its turn is incomplete."""
        self.bytes = 0
        """Approximate payload and JSON bytes of the included records."""

    @property
    def records(self) -> int:
        """Number of included records."""
        return self.next - self._first

    @property
    def sessions(self) -> int:
        """Number of changed sessions."""
        return self._states.changed

    def take(self, record: Record) -> None:
        """Process the next record; raises CorruptLog or UnreadableEvent."""
        if self._chain is None:
            self._chain = ChainChecker.before(record)
        self._chain.check(record)
        self.taken = record.sequence
        void, complete = self._turns.take(record)
        for parts, effective in ((void, False), (complete, True)):
            if parts:
                self._turn(parts, effective=effective)

    def finish(self) -> tuple[SegmentHead, Iterator[tuple[str, Any]]]:
        """Return the segment of the records since the last one; this completes it."""
        head = SegmentHead(
            self._stream,
            self._first,
            self.next - 1,
            self._previous,
            self._link,
            self._whole,
            self._began_ms,
            effects=True,
        )
        lists: dict[str, list[Any]] = {**self._lists, **self._references}
        checks = self._checks
        states = self._states.saved(position(self.next, 0)) if self._whole >= 0 else {}
        self._lists, self._references, self._checks, self.bytes = {}, {}, {}, 0
        self._first, self._previous = self.next, self._link
        return head, _items(lists, checks, states)

    def adopt(self, index: LogIndex) -> None:
        """Continue with the index that has all segments so far."""
        self._states.forget(index)

    def _turn(self, parts: Sequence[Record], *, effective: bool) -> None:
        sequences = [record.sequence for record in parts]
        keys: set[str] = set()
        earlier: dict[int, set[int]] = {}
        for part in parts:
            try:
                events = list(part.events())
                for raw in part.raw_events:
                    _collect(raw, keys)
                for index, event in events:
                    _refer(event, sequences[0], earlier)
                    if effective:
                        at = position(part.sequence, index)
                        self._fold(event, at, part)
                        self._follow(event, at, keys)
            except INCONSISTENCIES as error:
                raise inconsistency(part, error) from error
            self._note(part)
        for key in keys:
            self._lists.setdefault(key, []).extend(sequences)
        for record, entries in earlier.items():
            referred = self._references.setdefault(group_key(REFERRED, record), [])
            runs = to_runs(sorted(entries))
            for by in sequences:
                referred += [record, by, runs]
        touched = [key[1:] for key in keys if key[0] == SESSION]
        self._states.passed(touched, len(sequences))
        self.next = sequences[-1] + 1
        if self._whole >= 0:
            self._states.save_due(touched, position(self.next, 0))

    def _follow(self, event: Event, at: Position, keys: set[str]) -> None:
        """Add the topics of messages at QoS 2 that take effect."""
        if isinstance(event, MessagePublished):
            if event.qos == 2 and not event.will:
                topics = [topic_of(event, number) for number in range(event.count)]
                self._unreleased.update(zip(range(at, at + event.count), topics, strict=True))
                while len(self._unreleased) > _UNRELEASED:
                    del self._unreleased[next(iter(self._unreleased))]
        elif isinstance(event, Released):
            topics = [self._unreleased.pop(ref, "") for ref in from_runs(event.refs)]
            keys.update(EFFECT + topic for topic in topics)
        elif isinstance(event, InboundReplaced):
            for ref in from_runs(event.refs):
                self._unreleased.pop(ref, None)

    def _note(self, part: Record) -> None:
        """Record the check of a record, and the bounds of the segment."""
        if part.sequence == self._first:
            self._began_ms = part.time_ms
            self._previous = part.previous.hex()
        self._link = part.link.hex()
        self.bytes += len(part.payload) + 64 * len(part.raw_events)
        row = self._checks.setdefault(group_key(CHECKS, part.sequence), [])
        row += [part.sequence, self._link[:_LINK_DIGITS]]

    def _fold(self, event: Event, at: Position, part: Record) -> None:
        if isinstance(event, CheckpointBegun):
            self._begun = at
        elif isinstance(event, CheckpointCompleted):
            if self._whole < 0 and self._begun == event.begun:
                self._whole = at
                self._states.complete()
            self._begun = None
        name = getattr(event, "session", None)
        if name is not None:
            self._states.take(name, event, at, part)


def _refer(event: Event, first: int, earlier: dict[int, set[int]]) -> None:
    """Add the messages of records before the first one of a turn that an event refers to."""
    for ref in from_runs(getattr(event, "refs", None) or ()):
        if ref >> INDEX_BITS < first:
            earlier.setdefault(ref >> INDEX_BITS, set()).add(ref & MAX_INDEX)


def _collect(raw: dict[str, Any], keys: set[str]) -> None:
    """Add the keys under which the record of an event is listed."""
    kind = raw["e"]
    name = raw.get("session")
    if name is not None:
        keys.add(SESSION + name)
        if kind in _LIFECYCLE:
            keys.add(LIFECYCLE + name)
        elif kind == "WillArmed":
            keys.add(TOPIC + raw["topic"])
    if kind in RARE_EVENTS:
        keys.add(RARE + kind)
    # The topics of a MessageDropped belong to messages that were never recorded.
    listed = DROPPED if kind == "MessageDropped" else TOPIC
    for topic in raw.get("topics", ()):
        keys.add(listed + topic)
    if kind == "RetainedExpired":
        keys.update(RETAINED_EXPIRED + topic for topic in raw["topics"])


def _items(
    lists: dict[str, list[Any]],
    checks: dict[str, list[int | str]],
    states: dict[str, list[list[Any]]],
) -> Iterator[tuple[str, Any]]:
    """Yield all keys in order, with their values."""
    for key in sorted([*lists, *checks, *(STATES + name for name in states)]):
        if key[0] == STATES:
            yield key, states[key[1:]]
        elif key[0] == CHECKS:
            row = checks[key]
            yield key, [row[0], "".join(map(str, row[1::2]))]
        elif key[0] == REFERRED:
            yield key, lists[key]
        else:
            yield key, pack_sequences(lists[key])


# ----------------------------------------------------------------------- the states of sessions


class _CachedState:
    """The state of one session."""

    __slots__ = ("denied", "fold", "records", "rows", "size")

    def __init__(self, name: str, whole: Position, saved: SavedState | None) -> None:
        self.fold = SessionFold(name, whole)
        if saved is not None and saved.parts is not None:
            self.fold.state = decode_session(name, saved.parts)
        self.denied = DeniedFilters(saved.denied if saved is not None else ())
        self.records = 0
        """Number of records with the session since its state was last saved."""
        self.size = 0
        """Size of these records in bytes."""
        self.rows: list[list[Any]] = []
        """States saved since the last segment."""


class _StateCache:
    """The states of sessions by name: in memory as long as they change.

    States that have not changed since the last segment are in the index, and are loaded from it
    when they change. So memory is needed for the sessions of one segment, not for the whole log.
    ``whole`` is -1 until the state of a log that was cut is known.
    """

    def __init__(self, index: LogIndex, whole: Position) -> None:
        self._index = index
        self._whole = whole
        self._held: dict[str, _CachedState] = {}
        self._changed: dict[str, _CachedState] = {}

    @property
    def changed(self) -> int:
        """Number of sessions that changed since the last segment."""
        return len(self._changed)

    def complete(self) -> None:
        """Ignore snapshots of sessions from now on: all states are known."""
        self._whole = 0
        for cached in self._held.values():
            cached.fold.whole = 0

    def take(self, name: str, event: Event, at: Position, record: Record) -> None:
        """Fold an event of a session, from a record."""
        cached = self._changed.get(name)
        if cached is None:
            cached = self._held.pop(name, None) or self._load(name)
            self._held[name] = self._changed[name] = cached
        cached.fold.take(event, at, record.steady_ms)
        if isinstance(event, (SubscriptionDenied, Subscribed)):
            cached.denied.take(event, at, record.time_ms)

    def _load(self, name: str) -> _CachedState:
        saved = self._index.state_before(name, _NEVER)
        return _CachedState(name, _NEVER if self._whole < 0 else 0, saved)

    def passed(self, names: Iterable[str], records: int) -> None:
        """Count the records of a turn for the sessions that occur in them."""
        for name in names:
            cached = self._changed.get(name)
            if cached is not None:
                cached.records += records

    def save_due(self, names: Iterable[str], bound: Position) -> None:
        """Save the states of the sessions with a saved state that is too old."""
        for name in names:
            cached = self._changed.get(name)
            if cached is not None and cached.records >= states_due(cached.size):
                _save(cached, bound)

    def saved(self, bound: Position) -> dict[str, list[list[Any]]]:
        """Return the states for a segment that ends before a position."""
        rows = {}
        for name, cached in self._changed.items():
            if not cached.rows or cached.records:
                _save(cached, bound)
            rows[name], cached.rows = cached.rows, []
        self._changed = {}
        return rows

    def forget(self, index: LogIndex) -> None:
        """Load states from this index from now on; keep those with the latest changes."""
        self._index = index
        if self._whole >= 0:
            for name in list(self._held)[:-_HELD]:
                if name not in self._changed:
                    del self._held[name]


def _save(cached: _CachedState, bound: Position) -> None:
    state = cached.fold.state
    parts = None if state is None else encode_session(state)
    cached.size = len(orjson.dumps(parts))
    denied = [list(each) for each in cached.denied.filters()]
    cached.rows.append([bound, parts, denied, cached.records, cached.size])
    cached.records = 0
