"""The points at which a differing state diverges from the log: by field, and by event."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from eventstore import display
from eventstore.format.positions import Position, format_position, position
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import Progress, silent
from projections.past.comparison import (
    RETAINED,
    SESSION,
    Difference,
    apply,
    freeze_offline,
    read_turns,
)
from projections.state.digests import digest_number, pending_of, retained_digest, session_digest
from projections.state.node_state import NodeState
from projections.state.session import SessionState
from projections.views.session_fields import FIELDS, SessionField

_FREEZE_ABOVE = 50_000


def describe_message(qos: int, ref: Position, size: int) -> str:
    """Return a retained message as text."""
    return f"message {format_position(ref)}, QoS {qos}, {display.size(size)}"


class FirstDifference:
    """The last point of a fold at which something was equal on both sides."""

    __slots__ = ("equal", "equal_at", "parts_at")

    def __init__(self, *, equal: bool) -> None:
        self.equal = equal
        """Whether both sides are equal now."""
        self.equal_at: Position | None = None
        """The last event after which both sides were equal; None: there is none."""
        self.parts_at: Position | None = None
        """The event that made them differ."""

    def note(self, at: Position, *, equal: bool) -> None:
        """Record whether both sides are equal after an event."""
        if equal:
            self.equal_at, self.parts_at = at, None
        elif self.equal:
            self.parts_at = at
        self.equal = equal


@dataclass(slots=True)
class FieldDifference:
    """The difference in one field."""

    name: str
    log: list[str]
    other: list[str]
    """Elements that only one side has, as text; both empty: the order differs."""
    trail: FirstDifference


@dataclass(slots=True)
class Divergence:
    """A difference and its origin."""

    difference: Difference
    bound: Position
    """Position of ``state``; it may be later than the difference."""
    state: SessionState | None = None
    """The session on the other side; None if it is not available."""
    pending: list[Any] | None = None
    message: str | None = None
    """The retained message on the other side, as text."""
    whole: FirstDifference = field(default_factory=lambda: FirstDifference(equal=False))
    """The trail of the whole state, by its digest, up to the difference."""
    fields: list[FieldDifference] = field(default_factory=list)
    settled: bool = False
    """Both sides are equal except for their encoding: there is no difference."""
    _trails: dict[str, FirstDifference] = field(default_factory=dict)
    _wanted: dict[str, list[Any]] = field(default_factory=dict)
    _closed: bool = False
    _last: Position = 0

    def prepare(self) -> None:
        """Set up the trails, before the first event."""
        self.whole = FirstDifference(equal=self.difference.other is None)
        if self.state is not None:
            for part in FIELDS:
                self._trails[part.name] = FirstDifference(equal=False)
                self._wanted[part.name] = part.items(self.state)
        if self.pending is not None:
            self._trails[_PENDING] = FirstDifference(equal=False)

    @property
    def limit(self) -> Position:
        """Position from which events are not compared."""
        return max(self.bound, self.difference.bound)

    @property
    def trail(self) -> FirstDifference:
        """The trail of the field that diverges first."""
        trails = [part.trail for part in self.fields]
        parted = [trail for trail in trails if trail.parts_at is not None]
        if parted:
            return min(parted, key=lambda trail: trail.parts_at or 0)
        return self.whole

    def close(self, node: NodeState) -> None:
        """Compare for the last time, before the fold continues after the compared position."""
        self._closed = True
        self._find_fields(node)

    def after(self, node: NodeState, at: Position) -> None:
        """Compare after an event that concerns this session or topic."""
        if self._closed:
            return
        difference = self.difference
        self._last = at
        if at < difference.bound:
            self.whole.note(at, equal=digest_of(node, difference) == difference.other)
        if difference.kind != SESSION or not self._trails:
            return
        state = node.sessions.peek(difference.name)
        for part in FIELDS:
            if self.state is not None:
                equal = state is not None and self._equal(part, state)
                self._trails[part.name].note(at, equal=equal)
        if self.pending is not None:
            self._trails[_PENDING].note(at, equal=pending_of(node, difference.name) == self.pending)

    def _equal(self, part: SessionField, state: SessionState) -> bool:
        items = self._wanted[part.name]
        if part.count is not None and part.count(state) != len(items):
            return False
        return part.items(state) == items

    def _find_fields(self, node: NodeState) -> None:
        name = self.difference.name
        if self.message is not None:
            message = node.retained.get(name)
            log = (
                []
                if message is None
                else [describe_message(message.qos, message.ref, len(message.payload))]
            )
            self.fields.append(FieldDifference("message", log, [self.message], self.whole))
        state = node.sessions.peek(name) if self.difference.kind == SESSION else None
        if state is None or self.state is None:
            return
        for part in FIELDS:
            ours, theirs = part.items(state), self._wanted[part.name]
            if ours != theirs:
                only = [part.show(item, node.jumped_ms) for item in ours if item not in theirs]
                other = [part.show(item, node.jumped_ms) for item in theirs if item not in ours]
                self.fields.append(FieldDifference(part.name, only, other, self._trails[part.name]))
        if self.pending is not None and (pending := pending_of(node, name)) != self.pending:
            ours, theirs = (
                [display.count_of(counted[0], "message")] for counted in (pending, self.pending)
            )
            self.fields.append(FieldDifference(_PENDING, ours, theirs, self._trails[_PENDING]))
        self.settled = not self.fields and self._last < self.difference.bound


_PENDING = "retained after PUBREL"


def digest_of(node: NodeState, difference: Difference) -> int | None:
    """Return the digest of a difference's session or topic in the fold."""
    if difference.kind == RETAINED:
        message = node.retained.get(difference.name)
        return None if message is None else digest_number(retained_digest(message))
    digest = session_digest(node, difference.name, pending=difference.where == "broker")
    return None if digest is None else digest_number(digest)


async def find_divergences(
    source: LogSource, divergences: Iterable[Divergence], last: int, progress: Progress = silent
) -> None:
    """Fold the log again and find where the two sides diverge.

    Raises CorruptLog and CutMeanwhile, as every reader of the log.
    """
    sessions: dict[str, list[Divergence]] = {}
    topics: dict[str, list[Divergence]] = {}
    for divergence in divergences:
        table = {SESSION: sessions, RETAINED: topics}.get(divergence.difference.kind)
        if table is not None:
            divergence.prepare()
            table.setdefault(divergence.difference.name, []).append(divergence)
    if not sessions and not topics:
        return
    everything = [
        divergence
        for table in (sessions, topics)
        for divergences_of in table.values()
        for divergence in divergences_of
    ]
    everything.sort(key=lambda divergence: divergence.limit, reverse=True)
    node = NodeState(source.begin)
    touched: dict[str, Position] = {}
    node.retained.dirty = touched
    crowd = _FREEZE_ABOVE
    async for turn in read_turns(source, last, "finding where it diverges", progress):
        for record in turn:
            node.jumped_ms = record.jumps.total_ms
            base = position(record.sequence, 0)
            for index, event in record.events():
                name = getattr(event, "session", None)
                if not topics and name is not None and name not in sessions:
                    continue
                at = base + index
                while everything and everything[-1].limit <= at:
                    everything.pop().close(node)
                apply(node, event, at, record)
                for divergence in sessions.get(name, ()) if name is not None else ():
                    divergence.after(node, at)
                for topic in touched:
                    for divergence in topics.get(topic, ()):
                        divergence.after(node, at)
                touched.clear()
        if len(node.sessions.live) > crowd:
            freeze_offline(node, position(turn[-1].sequence + 1, 0))
            crowd = max(_FREEZE_ABOVE, 2 * len(node.sessions.live))
    for divergence in everything:
        divergence.close(node)
