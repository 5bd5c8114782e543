"""A log folded up to a moment, by the broker's own fold."""

from dataclasses import dataclass, replace

from cli.common import text
from cli.common.gc_pause import few_collections
from cli.common.progress import progress
from cli.logsource.moments import Cut
from cli.logsource.source import CutOff, Source
from eventstore.errors import CorruptLog
from eventstore.format import (
    MAX_INDEX,
    CheckpointBegun,
    Event,
    Position,
    Record,
    RetainedSnapshot,
    format_position,
    from_runs,
    position,
)
from projections.state import NodeState

_UPDATE_EVERY = 16


@dataclass(frozen=True, slots=True)
class AsOf:
    """A moment that a state is of."""

    cut: Cut
    """Sequence 0: before the first record."""
    record_ms: int
    """Time of the record, Unix time in milliseconds."""

    def __str__(self) -> str:
        """Give it for a person."""
        if not self.cut.sequence:
            return "before the first record"
        return f"{self.place}, {text.clock(self.record_ms)}"

    @property
    def place(self) -> str:
        """Give the position; that of a whole record is its number."""
        if self.cut.index == MAX_INDEX:
            return f"record {self.cut.sequence}"
        return f"position {format_position(position(self.cut.sequence, self.cut.index))}"

    def fields(self) -> dict[str, object]:
        """Give it as fields of a JSON object."""
        place = self.place.rpartition(" ")[2]
        return {"as_of": place, "time": text.iso(self.record_ms) if self.cut.sequence else None}


class Replay:
    """Folds a log from its beginning up to ``last``, step by step.

    Raises CorruptLog when the log does not begin where it may, or misses its end.
    """

    def __init__(self, source: Source, last: int, only: str | None = None) -> None:
        source.require_whole()
        self.state = NodeState(source.begin)
        self.origins = Origins()
        self._source = source
        self._records = source.records(source.begin, last)
        self._only = only
        self._done = source.begin - 1
        self._time_ms = 0

    async def to(self, cut: Cut) -> AsOf:
        """Fold up to a place behind the last one; return which moment that is.

        After a place in the middle of a record there is no next step. A turn takes effect with
        its last part. Raises CorruptLog and UnreadableEvent, and CutOff for a place so near to
        where the log was cut that the state cannot be known there.
        """
        with few_collections(), progress("folding", cut.sequence) as update:
            while self._done < cut.sequence:
                record = await anext(self._records)
                self._done = record.sequence
                self._time_ms = record.time_ms
                if record.sequence == cut.sequence and cut.index != MAX_INDEX:
                    record = _head(record, cut.index)
                self.origins.take(record, self.state)
                fold(self.state, record, self._only)
                if record.sequence % _UPDATE_EVERY == 0:
                    update(record.sequence)
        as_of = AsOf(cut, self._time_ms)
        if self.state.partial:
            raise await self._too_early(as_of)
        return as_of

    async def _too_early(self, as_of: AsOf) -> CutOff:
        """Return what says from which record on a state can be rebuilt."""
        source = self._source
        missing = f"the state as of {as_of} cannot be rebuilt"
        if as_of.cut.sequence < source.begin:
            missing = f"no state before record {source.begin} can be rebuilt"
        state = NodeState(source.begin)
        with few_collections(), progress("looking for the first state", source.last) as update:
            async for record in source.records(source.begin, source.last):
                fold(state, record, only="")
                if not state.partial:
                    since = f"record {record.sequence}, {text.clock(record.time_ms)}"
                    return CutOff(
                        f"{missing}: {source.beginning()}; states can be rebuilt from {since} on"
                    )
                if record.sequence % _UPDATE_EVERY == 0:
                    update(record.sequence)
        raise CorruptLog(source.begin, "begins the log, and no whole checkpoint follows it")


class Origins:
    """Where retained messages stood before checkpoints repeated them."""

    def __init__(self) -> None:
        self._first: dict[Position, Position] = {}

    def take(self, record: Record, state: NodeState) -> None:
        """Follow a record that is to be folded next."""
        if any(raw.get("e") in _REPEATING for raw in record.raw_events):
            base = position(record.sequence, 0)
            for index, event in record.events():
                self._follow(event, base + index, state)

    def _follow(self, event: Event, at: Position, state: NodeState) -> None:
        known = self._first
        if isinstance(event, CheckpointBegun):  # forget what is not retained any more
            current = (message.ref for message in state.retained.all())
            self._first = {ref: known[ref] for ref in current if ref in known}
        elif isinstance(event, RetainedSnapshot) and event.session is None:
            for new, old in enumerate(from_runs(event.refs), at):
                known[new] = known.get(old, old)

    def of(self, ref: Position) -> Position:
        """Return the first position that is known of a retained message."""
        return self._first.get(ref, ref)


_REPEATING = frozenset({"CheckpointBegun", "RetainedSnapshot"})


def fold(state: NodeState, record: Record, only: str | None = None) -> None:
    """Fold a record; raise CorruptLog when its events do not fit together."""
    try:
        state.apply_record(record, only)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        what = f"holds an event that does not fit: {type(error).__name__}"
        raise CorruptLog(record.sequence, what) from error


def _head(record: Record, index: int) -> Record:
    """Return a record with the events up to an index only."""
    count = sum(1 for at, _ in record.events() if at <= index)
    return replace(record, raw_events=record.raw_events[:count])
