"""A fold of the log, compared at several positions with the broker's state and its projections."""

from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from eventstore.errors import CutOff
from eventstore.format.event_parsing import Event
from eventstore.format.events import MessagePublished
from eventstore.format.node_events import RetainedSnapshot
from eventstore.format.positions import Position, format_position, position
from eventstore.format.records import Record
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import Progress, few_collections, silent
from projections.past.live_state import LivePage, LiveState
from projections.past.replay import fold
from projections.past.stored_projections import StoredProjections
from projections.state.digests import digest_number, retained_digest, session_digest
from projections.state.format import ProjectionMark
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency
from projections.state.node_state import NodeState

BROKER, PROJECTIONS = "broker", "projections"
SESSION, RETAINED, MARK = "session", "retained", "mark"

_UPDATE_EVERY = 16
_FREEZE_EVERY = 64
_FREEZE_FROM = 50_000
"""Offline sessions are frozen while more sessions than this are in memory."""


@dataclass(slots=True)
class Difference:
    """A session or retained message that differs from the log."""

    where: str
    """BROKER or PROJECTIONS."""
    kind: str
    name: str
    bound: Position
    """Position of the comparison: the state includes everything before it."""
    log: int | None
    other: int | None
    """Digest; None: the other side has no such state."""


class Check(NamedTuple):
    """A comparison with the fold at a position."""

    bound: Position
    """Everything before it must be folded first."""
    look: Callable[[NodeState], Iterator[Difference]]
    """Yields the differences."""


def apply(node: NodeState, event: Event, at: Position, record: Record) -> None:
    """Fold one event; raise CorruptLog when it does not fit."""
    pieces: Sequence[bytes] = ()
    if isinstance(event, RetainedSnapshot) or (
        isinstance(event, MessagePublished) and event.retain
    ):
        pieces = record.pieces(event)
    try:
        node.apply(event, at, record.steady_ms, pieces)
    except INCONSISTENCIES as error:
        raise inconsistency(record, error) from error


async def read_turns(
    source: LogSource, last: int, doing: str, progress: Progress = silent
) -> AsyncIterator[list[Record]]:
    """Yield the turns of a log up to a record, each with all of its records."""
    turns = TurnAssembler()
    if last < source.begin:
        return
    with few_collections(), progress(doing, last) as update:
        async for record in source.records(source.begin, last):
            _, turn = turns.take(record)
            if turn:
                yield turn
            if record.sequence % _UPDATE_EVERY == 0:
                update(record.sequence)


def freeze_offline(node: NodeState, bound: Position) -> None:
    """Freeze the offline sessions to save memory."""
    for name in [name for name, state in node.sessions.live.items() if not state.connected]:
        node.sessions.freeze(name, bound)


class Comparison:
    """Folds a log and runs each check on the state at its position.

    With ``only``, the events of one session alone are folded.
    """

    def __init__(
        self,
        source: LogSource,
        checks: Iterable[Check],
        only: str | None = None,
        progress: Progress = silent,
    ) -> None:
        self.node = NodeState(source.begin)
        self._source = source
        self._progress = progress
        self._checks: list[Check] = []
        self._only = only
        self._differences: list[Difference] = []
        self._freeze_above = _FREEZE_FROM
        self.watch: Callable[[Event], None] | None = None
        """Called after each event."""
        self.on_record: Callable[[Record], Difference | None] | None = None
        """Called with each record before it is folded."""
        self.times_ms: tuple[int, int] | None = None
        """Times of the first and the last record that were folded; None: the log is empty."""
        self.add(checks)

    def add(self, checks: Iterable[Check]) -> None:
        """Add checks, before the fold begins."""
        self._checks += checks
        self._checks.sort(key=lambda check: check.bound, reverse=True)

    async def run(self, last: int) -> list[Difference]:
        """Fold up to a record and return the differences.

        Raises CutOff where a state cannot be rebuilt, CorruptLog, UnreadableEvent or CutMeanwhile.
        """
        async for turn in read_turns(self._source, last, "comparing", self._progress):
            if self.on_record is not None:
                self._differences += filter(None, map(self.on_record, turn))
            self._turn(turn)
            begin_ms = self.times_ms[0] if self.times_ms is not None else turn[0].time_ms
            self.times_ms = begin_ms, turn[-1].time_ms
        self._look(position(last + 1, 0))
        return self._differences

    def _turn(self, turn: list[Record]) -> None:
        after = position(turn[-1].sequence + 1, 0)
        bound = self._checks[-1].bound if self._checks else after
        if self.watch is None and bound >= after:
            for record in turn:
                fold(self.node, record, self._only)
        else:
            for record in turn:
                self._events(record)
        if (
            turn[-1].sequence % _FREEZE_EVERY == 0
            and len(self.node.sessions.live) > self._freeze_above
        ):
            freeze_offline(self.node, after)
            self._freeze_above = max(_FREEZE_FROM, 2 * len(self.node.sessions.live))

    def _events(self, record: Record) -> None:
        base = position(record.sequence, 0)
        for index, event in record.events():
            self._look(base + index)
            if self._only is None or getattr(event, "session", None) in (self._only, None):
                apply(self.node, event, base + index, record)
                if self.watch is not None:
                    self.watch(event)

    def _look(self, here: Position) -> None:
        """Run the checks whose position is reached when everything before ``here`` is folded."""
        while self._checks and self._checks[-1].bound <= here:
            check = self._checks.pop()
            if self.node.partial:
                raise CutOff(
                    f"the state at {format_position(check.bound)} cannot be rebuilt: "
                    f"{self._source.beginning()}, and there is no complete checkpoint in between"
                )
            self._differences += check.look(self.node)


def _digest(node: NodeState, name: str, *, pending: bool) -> int | None:
    text = session_digest(node, name, pending=pending)
    return None if text is None else digest_number(text)


def _retained(node: NodeState, topic: str) -> int | None:
    message = node.retained.get(topic)
    return None if message is None else digest_number(retained_digest(message))


# ------------------------------------------------------------------------------ the broker


def _compared(
    node: NodeState,
    bound: Position,
    kind: str,
    names: Iterable[str],
    reported: Mapping[str, int | None],
) -> Iterator[Difference]:
    """Yield the sessions, or the topics, whose digests in the log and in the broker differ."""
    for name in names:
        ours = _digest(node, name, pending=True) if kind == SESSION else _retained(node, name)
        if ours != (theirs := reported.get(name)):
            yield Difference(BROKER, kind, name, bound, ours, theirs)


def _begun_check(reply: LiveState, node: NodeState) -> Iterator[Difference]:
    """Yield what existed when the broker began its answer, and is on none of its pages."""
    on_pages = {name for page in reply.pages for name in page.sessions}
    missing = [name for name in node.sessions.names() if name not in on_pages]
    yield from _compared(node, reply.begun, SESSION, missing, {})
    on_pages = {topic for page in reply.pages for topic in page.retained}
    missing = [topic for topic in node.retained.topics() if topic not in on_pages]
    yield from _compared(node, reply.begun, RETAINED, missing, {})


def _page_check(page: LivePage, node: NodeState) -> Iterator[Difference]:
    """Compare a page of the broker's answer."""
    yield from _compared(node, page.bound, SESSION, page.sessions, page.sessions)
    yield from _compared(node, page.bound, RETAINED, page.retained, page.retained)


def page_check(page: LivePage) -> Check:
    """Return the check of a page of a broker's answer."""
    return Check(page.bound, partial(_page_check, page))


def broker_checks(reply: LiveState) -> list[Check]:
    """Return the checks for the whole answer of a broker.

    It must contain everything that existed when the broker began it.
    """
    return [Check(reply.begun, partial(_begun_check, reply)), *map(page_check, reply.pages)]


# ------------------------------------------------------------------------- the projections


@dataclass(slots=True)
class ProjectionCheck:
    """Compares projections at a position; with ``whole``, also checks that none is missing.

    A retained message has the position of its publication, not of its effect (QoS 2), and a session
    or message may have been removed after the mark and before the projections were read. Such
    differences may disappear: they stay ``open`` and are checked again at the end.
    """

    bound: Position
    stored: StoredProjections
    sessions: list[str]
    retained: list[str]
    comparison: Comparison
    whole: bool = False
    only: str | None = None
    open: dict[tuple[str, str], Difference] = field(default_factory=dict)

    def look(self, node: NodeState) -> Iterator[Difference]:
        """Yield the permanent differences."""
        for name in self.sessions:
            ours, theirs = _digest(node, name, pending=False), self.stored.sessions[name].digest
            if ours != theirs:
                yield Difference(PROJECTIONS, SESSION, name, self.bound, ours, theirs)
        for topic in self.retained:
            self._open(RETAINED, topic, _retained(node, topic), self.stored.retained[topic].digest)
        if self.whole:
            self._missing(node)
        if self.open:
            self._watch(node)

    def _missing(self, node: NodeState) -> None:
        for name in node.sessions.names() if self.only is None else [self.only]:
            if name not in self.stored.sessions and name not in self.stored.torn:
                self._open(SESSION, name, _digest(node, name, pending=False), None)
        for topic in node.retained.topics() if self.only is None else ():
            if topic not in self.stored.retained:
                self._open(RETAINED, topic, _retained(node, topic), None)

    def _open(self, kind: str, name: str, ours: int | None, theirs: int | None) -> None:
        if ours != theirs:
            difference = Difference(PROJECTIONS, kind, name, self.bound, ours, theirs)
            self.open[kind, name] = difference

    def _watch(self, node: NodeState) -> None:
        before = self.comparison.watch
        if before is None:
            node.retained.dirty = {}

        def after(event: Event) -> None:
            touched = node.retained.dirty or {}
            for topic in touched:
                difference = self.open.get((RETAINED, topic))
                if difference is not None and difference.other == _retained(node, topic):
                    del self.open[RETAINED, topic]
            name = getattr(event, "session", None)
            if name is not None and (SESSION, name) in self.open and name not in node.sessions:
                del self.open[SESSION, name]
            if before is not None:
                before(event)
            else:
                touched.clear()

        self.comparison.watch = after


def projection_checks(
    stored: StoredProjections, comparison_of: Comparison, last: int, only: str | None
) -> list[ProjectionCheck]:
    """Return the checks of projections: as of their mark, or of their version if it is newer."""
    mark = position(stored.mark.sequence + 1, 0) if stored.mark is not None else 0
    end = position(last + 1, 0)
    bounds: dict[Position, tuple[list[str], list[str]]] = {}
    if stored.mark is not None:
        bounds[min(mark, end)] = [], []
    for name, held in stored.sessions.items():
        bounds.setdefault(min(max(mark, held.version), end), ([], []))[0].append(name)
    for topic, held in stored.retained.items():
        if mark:  # the positions at which the messages took effect are not known
            bounds[min(mark, end)][1].append(topic)
        else:
            bounds.setdefault(min(held.version + 1, end), ([], []))[1].append(topic)
    return [
        ProjectionCheck(
            bound, stored, *names, comparison_of, bound == mark and stored.mark is not None, only
        )
        for bound, names in bounds.items()
    ]


def mark_checker(mark: ProjectionMark) -> Callable[[Record], Difference | None]:
    """Return a check that the log contains the record of the mark."""

    def check(record: Record) -> Difference | None:
        if record.sequence != mark.sequence or record.link.hex() == mark.link:
            return None
        at = position(record.sequence, 0)
        return Difference(PROJECTIONS, MARK, "", at, _link(record.link.hex()), _link(mark.link))

    return check


def beyond(stored: StoredProjections, end: int) -> Difference | None:
    """Return a difference if projections reflect more than the log contains."""
    if stored.mark is None or stored.mark.sequence <= end:
        return None
    at = position(end + 1, 0)
    return Difference(PROJECTIONS, MARK, "", at, None, _link(stored.mark.link))


def _link(link: str) -> int:
    return digest_number(link[:16])
