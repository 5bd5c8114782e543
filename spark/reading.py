"""Reading a range of a log into Arrow batches."""

from __future__ import annotations

import gc
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eventstore.events import UnknownEvent, UnreadableEvent
from eventstore.positions import position
from eventstore.records import Record, decode_record
from spark.access import PREFIX
from spark.checking import Checked, Checker
from spark.decoding import Decoder, rows_of
from spark.failures import of_log
from spark.opening import frame_of, opener
from spark.options import DROPMALFORMED, FAILFAST
from spark.records import NEED_EVENTS, record_rows

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    import pyarrow as pa

    from spark.columns import Columns
    from spark.planning import Range
    from spark.wanted import Pushed

_EVENTS: Final = 1 << 11
"""Events that are decoded together at most: what they are made of stays in the caches."""
_FEWEST: Final = 1 << 6
_ROWS: Final = 1 << 15
_BYTES: Final = 8 << 20
_YOUNG: Final = 200_000
"""Objects that may be made before Python looks for garbage: more than a batch is made of."""


@dataclass(frozen=True, slots=True)
class Reading:
    """How ranges are read."""

    columns: Columns
    pushed: Pushed
    mode: str
    """One of the modes of ``spark.options``."""

    def read(self, part: Range) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range in order.

        Raises SparkFailure naming the log, for damage unless it is to be shown or dropped, and in
        any case for what a later foldmq wrote.
        """
        with of_log(part.stored.stream), _few_collections():
            yield from self._batches(part)

    def _batches(self, part: Range) -> Iterator[pa.RecordBatch]:
        found = Checker(part, self._opener(), strict=self.mode == FAILFAST).records()
        if self.mode == DROPMALFORMED:
            found = (one for one in found if one.damage is None)
        if self.columns.rows == "records":
            return self._records(part, found)
        return self._events(part, found)

    def _opener(self) -> Callable[[int, bytes], Record]:
        if self.columns.rows != "records":
            return opener(self.pushed.types, self.pushed.sessions)
        return decode_record if NEED_EVENTS & set(self.columns.names) else frame_of

    def _records(self, part: Range, found: Iterator[Checked]) -> Iterator[pa.RecordBatch]:
        for some in _gathered(found, _Bound()):
            yield record_rows(_node(part), some, self.columns.names)

    def _events(self, part: Range, found: Iterator[Checked]) -> Iterator[pa.RecordBatch]:
        decoder = Decoder(self.columns, self.pushed.wanted(part.start, part.until))
        bound = _Bound()
        for some in _gathered((one for one in found if not one.void), bound):
            rows = 0
            for piece in _pieces(some):
                for batch in (
                    self._damage(part, piece)
                    if isinstance(piece, Checked)
                    else self._decoded(decoder, part, piece)
                ):
                    rows += batch.num_rows
                    yield batch
            bound.learn(some, rows)

    def _decoded(
        self, decoder: Decoder, part: Range, records: Sequence[Record]
    ) -> Iterator[pa.RecordBatch]:
        try:
            yield from decoder.batches(records)
        except UnknownEvent:
            raise
        except UnreadableEvent as error:
            if self.mode == FAILFAST:
                raise
            if len(records) > 1:
                for record in records:
                    yield from self._decoded(decoder, part, [record])
            elif self.mode != DROPMALFORMED:
                bad = records[0]
                yield from self._damage(part, Checked(bad.sequence, None, bad, str(error)))

    def _damage(self, part: Range, found: Checked) -> Iterator[pa.RecordBatch]:
        """Yield the row that tells of a damaged record: it is of no type and no session."""
        if self.pushed.types is None and self.pushed.sessions is None:
            row: dict[str, object] = {
                "node": _node(part),
                "seq": found.sequence,
                "index": 0,
                "position": position(found.sequence, 0),
                "damage": found.damage,
            }
            yield rows_of(self.columns, [row])


@contextmanager
def _few_collections() -> Iterator[None]:
    """Have garbage collected seldom.

    What is read of a log is many small objects that live for one batch and form no cycles: to
    look for cycles among them took half of the time.
    """
    before = gc.get_threshold()
    gc.set_threshold(_YOUNG, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _node(part: Range) -> str:
    return part.stored.stream.removeprefix(PREFIX)


class _Bound:
    """How many events are decoded together: fewer if they have many entries."""

    def __init__(self) -> None:
        self.events = _EVENTS

    def learn(self, some: Sequence[Checked], rows: int) -> None:
        """Take how many rows some records have become."""
        events = sum(len(one.record.raw_events) for one in some if one.record is not None)
        self.events = max(_FEWEST, min(_EVENTS, _ROWS * events // max(rows, 1)))


def _gathered(found: Iterable[Checked], bound: _Bound) -> Iterator[list[Checked]]:
    """Yield records in groups that are bounded in events and bytes."""
    some: list[Checked] = []
    events = size = 0
    for one in found:
        some.append(one)
        size += len(one.data or b"")
        events += 1 if one.record is None else 1 + len(one.record.raw_events)
        if events >= bound.events or size >= _BYTES:
            yield some
            some = []
            events = size = 0
    if some:
        yield some


def _pieces(some: Sequence[Checked]) -> Iterator[list[Record] | Checked]:
    """Yield what is damaged by itself, and what is not together, in order."""
    records: list[Record] = []
    for one in some:
        if one.damage is None and one.record is not None:
            records.append(one.record)
            continue
        if records:
            yield records
            records = []
        yield one
    if records:
        yield records
