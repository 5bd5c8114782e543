"""A log folded up to a point, by the fold of the broker."""

from dataclasses import dataclass, replace

from eventstore import display
from eventstore.errors import CorruptLog, CutOff
from eventstore.format.event_parsing import Event
from eventstore.format.node_events import CheckpointBegun, RetainedSnapshot
from eventstore.format.positions import MAX_INDEX, Position, format_position, from_runs, position
from eventstore.format.records import Record
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.progress import Progress, few_collections, silent
from projections.past.lost_records import salvage_around, take_salvages
from projections.state.inconsistent_events import INCONSISTENCIES, inconsistency
from projections.state.node_state import NodeState

_UPDATE_EVERY = 16


@dataclass(frozen=True, slots=True)
class AsOf:
    """The point in the log that a state corresponds to."""

    point: LogPoint
    record_ms: int
    """Time of the record, Unix time in milliseconds."""
    jumped_ms: int = 0
    """Sum of the jumps of the clock up to it: times in states are without them."""

    def __str__(self) -> str:
        """Return the point as text."""
        if not self.point.sequence:
            return "before the first record"
        return f"{self.place}, {display.clock(self.record_ms)}"

    @property
    def place(self) -> str:
        """The position; for a whole record its sequence."""
        if self.point.index == MAX_INDEX:
            return f"record {self.point.sequence}"
        return f"position {format_position(position(self.point.sequence, self.point.index))}"

    def fields(self) -> dict[str, object]:
        """Return the point as fields of a JSON object."""
        place = self.place.rpartition(" ")[2]
        return {
            "as_of": place,
            "time": display.iso(self.record_ms) if self.point.sequence else None,
        }


class Replay:
    """Folds a log from its beginning up to record ``last``, step by step."""

    def __init__(
        self,
        source: LogSource,
        last: int,
        only: str | None = None,
        progress: Progress = silent,
    ) -> None:
        """Begin before the first record; with ``only``, fold the events of one session alone.

        Raises CorruptLog when the log does not begin at a valid record, or its end is missing.
        """
        source.require_whole()
        self.state = NodeState(source.begin)
        self.origins = Origins()
        self._source = source
        self._progress = progress
        self._records = source.records(source.begin, last)
        self._only = only
        self._done = source.begin - 1
        self._time_ms = self._jumped_ms = 0
        self._is_empty = False
        """Whether the last record has no events: it was given up."""

    async def to(self, point: LogPoint) -> AsOf:
        """Fold up to a point after the last one; return the point that ``state`` corresponds to.

        After a point in the middle of a record, the fold cannot continue. A turn takes effect with
        its last part. Raises CorruptLog and UnreadableEvent, and CutOff for a point so close to the
        cut of the log that its state is not known.
        """
        with few_collections(), self._progress("folding", point.sequence) as update:
            while self._done < point.sequence:
                record = await anext(self._records)
                self._done = record.sequence
                self._time_ms, self._jumped_ms = record.time_ms, record.jumps.total_ms
                self._is_empty = not record.raw_events
                if record.sequence == point.sequence and point.index != MAX_INDEX:
                    record = head(record, point.index)
                self.origins.take(record, self.state)
                fold(self.state, record, self._only)
                if record.sequence % _UPDATE_EVERY == 0:
                    update(record.sequence)
        salvage = await salvage_around(self._source, point.sequence) if self._is_empty else None
        if salvage is not None:
            take_salvages(self.state.proof, salvage)
            self.state.doubtful = dict.fromkeys(self.state.sessions.names())
        as_of = AsOf(point, self._time_ms, self._jumped_ms)
        if self.state.partial:
            raise await self._too_early(as_of)
        return as_of

    async def _too_early(self, as_of: AsOf) -> CutOff:
        """Return the error that names the first record whose state can be rebuilt."""
        source = self._source
        missing = f"the state as of {as_of} cannot be rebuilt"
        if as_of.point.sequence < source.begin:
            missing = f"no state before record {source.begin} can be rebuilt"
        state = NodeState(source.begin)
        doing = "searching for the first state"
        with few_collections(), self._progress(doing, source.last) as update:
            async for record in source.records(source.begin, source.last):
                fold(state, record, only="")
                if not state.partial:
                    since = f"record {record.sequence}, {display.clock(record.time_ms)}"
                    return CutOff(
                        f"{missing}: {source.beginning()}; states can be rebuilt from {since} on"
                    )
                if record.sequence % _UPDATE_EVERY == 0:
                    update(record.sequence)
        raise CorruptLog(source.begin, "begins the log, and no complete checkpoint follows it")


class Origins:
    """The positions of retained messages before checkpoints repeated them."""

    def __init__(self) -> None:
        self._first: dict[Position, Position] = {}

    def take(self, record: Record, state: NodeState) -> None:
        """Process a record before it is folded."""
        if any(raw.get("e") in _REPEATING for raw in record.raw_events):
            base = position(record.sequence, 0)
            for index, event in record.events():
                self._follow(event, base + index, state)

    def _follow(self, event: Event, at: Position, state: NodeState) -> None:
        earliest = self._first
        if isinstance(event, CheckpointBegun):  # forget what is no longer retained
            current = (message.ref for message in state.retained.all())
            self._first = {ref: earliest[ref] for ref in current if ref in earliest}
        elif isinstance(event, RetainedSnapshot) and event.session is None:
            for new, old in enumerate(from_runs(event.refs), at):
                earliest[new] = earliest.get(old, old)

    def of(self, ref: Position) -> Position:
        """Return the earliest known position of a retained message."""
        return self._first.get(ref, ref)


_REPEATING = frozenset({"CheckpointBegun", "RetainedSnapshot"})


def fold(state: NodeState, record: Record, only: str | None = None) -> None:
    """Fold a record; raise CorruptLog when its events do not fit together."""
    try:
        state.apply_record(record, only)
    except INCONSISTENCIES as error:
        raise inconsistency(record, error) from error


def head(record: Record, index: int) -> Record:
    """Return a record with only the events that begin at or before an index."""
    count = sum(1 for at, _ in record.events() if at <= index)
    return replace(record, raw_events=record.raw_events[:count])
