"""A log folded up to a moment, by the broker's own fold."""

from dataclasses import dataclass, replace

from cli import text
from cli.moments import Cut
from cli.progress import progress
from cli.source import Source
from eventstore.positions import MAX_INDEX, format_position, position
from eventstore.records import Record
from projections.node import NodeState

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

    Raises CorruptLog when the log does not begin with record 1 or misses its end.
    """

    def __init__(self, source: Source, last: int, only: str | None = None) -> None:
        source.require_whole()
        self.state = NodeState()
        self._records = source.records(1, last)
        self._only = only
        self._done = 0
        self._time_ms = 0

    async def to(self, cut: Cut) -> AsOf:
        """Fold up to a place behind the last one; return which moment that is.

        After a place in the middle of a record there is no next step. A turn takes effect with
        its last part. Raises CorruptLog and UnreadableEvent.
        """
        with progress("folding", cut.sequence) as update:
            while self._done < cut.sequence:
                record = await anext(self._records)
                self._done = record.sequence
                self._time_ms = record.time_ms
                if record.sequence == cut.sequence and cut.index != MAX_INDEX:
                    record = _head(record, cut.index)
                self.state.apply_record(record, self._only)
                if record.sequence % _UPDATE_EVERY == 0:
                    update(record.sequence)
        return AsOf(cut, self._time_ms)


def _head(record: Record, index: int) -> Record:
    """Return a record with the events up to an index only."""
    count = sum(1 for at, _ in record.events() if at <= index)
    return replace(record, raw_events=record.raw_events[:count])
