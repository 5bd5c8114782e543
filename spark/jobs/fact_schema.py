"""Facts as Arrow batches: see ``projections.audit.facts``."""

from __future__ import annotations

from collections import Counter
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pyarrow as pa

from projections.audit.audit_results import MANY_ROWS
from projections.audit.facts import (
    CARRIED,
    EFFECT,
    EVENTS,
    GRANT,
    NODE,
    RELEASED,
    REPLAY,
    RETAINED,
    SENT,
    SPANS,
    WILL,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

Fold: TypeAlias = "Callable[[Iterable[tuple[Any, ...]]], Iterable[tuple[Any, ...]]]"
"""See ``projections.audit.log_folds``."""

SCHEMA: Final = pa.schema(
    [
        ("kind", pa.int8()),
        ("node", pa.string()),
        ("session", pa.string()),
        ("at", pa.int64()),
        ("ref", pa.int64()),
        ("time_ms", pa.int64()),
        ("number", pa.int32()),
        ("size", pa.int64()),
        ("expires", pa.int64()),
        ("check", pa.int64()),
        ("topic", pa.string()),
        ("digest", pa.string()),
        ("before", pa.string()),
        ("data", pa.binary()),
        ("payload", pa.binary()),
    ]
)
DDL: Final = (
    "kind tinyint, node string, session string, at bigint, ref bigint, time_ms bigint, "
    "number int, size bigint, expires bigint, check bigint, topic string, digest string, "
    "before string, data binary, payload binary"
)

_ROWS = 8192
"""Maximum rows of a batch."""
_AS_OBJECTS: Final = 1024
"""Bytes of a fact as Python objects."""
_BYTES = 4 * 1024 * 1024
"""Approximate maximum bytes of packed events in a batch."""


def memory_of(batch: pa.RecordBatch) -> int:
    """Return about how much memory an audit without Spark needs for the facts of a batch.

    It copies events and messages some times, and makes Python objects of facts of other kinds.
    """
    kind = batch.column("kind")[0].as_py()
    objects = 0 if kind in {EVENTS, EFFECT} else _AS_OBJECTS * batch.num_rows
    size: int = batch.nbytes
    return 4 * size + objects


def fact_batch(columns: Sequence[str], rows: Sequence[tuple[Any, ...]]) -> pa.RecordBatch:
    """Return rows with some columns as facts; the other columns are null."""
    values = dict(zip(columns, zip(*rows, strict=True), strict=True))
    arrays = [
        pa.array(values[field.name], field.type)
        if field.name in values
        else pa.nulls(len(rows), field.type)
        for field in SCHEMA
    ]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def fact_rows(batches: Iterable[pa.RecordBatch], *columns: str) -> Iterator[tuple[Any, ...]]:
    """Yield some columns of facts, row by row."""
    for batch in batches:
        yield from zip(*(batch.column(name).to_pylist() for name in columns), strict=True)


def fold_batches(
    fold: Fold,
    columns: Sequence[str],
    results: Sequence[str],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Yield the results of a fold of facts; ``columns`` and ``results`` are those of its rows."""
    rows = iter(fold(fact_rows(batches, *columns)))
    while some := list(islice(rows, MANY_ROWS)):
        yield fact_batch(results, some)


class FactColumns:
    """Facts of one kind and one node, collected by column."""

    __slots__ = ("_appends", "columns", "kind")

    def __init__(self, kind: int, *columns: str) -> None:
        self.kind = kind
        self.columns: dict[str, list[Any]] = {name: [] for name in columns}
        self._appends = [column.append for column in self.columns.values()]

    def __len__(self) -> int:
        """Return the number of facts."""
        return len(next(iter(self.columns.values())))

    def add(self, *values: Any) -> None:
        """Add a fact, its values in the order of the columns."""
        for append, value in zip(self._appends, values, strict=True):
            append(value)

    def extend(self, *values: Sequence[Any]) -> None:
        """Add several facts: a sequence for each column, all of the same length."""
        for column, some in zip(self.columns.values(), values, strict=True):
            column.extend(some)

    def take(self, node: str) -> Iterator[pa.RecordBatch]:
        """Yield the facts as batches, and reset."""
        for start, stop in self._pieces():
            yield self._batch(node, start, stop)
        for values in self.columns.values():
            values.clear()

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the range of rows of each batch: names may have 64 KiB, and repeat."""
        count, start, size = len(self), 0, 0
        texts = [self.columns[name] for name in ("session", "topic") if name in self.columns]
        if sum(sum(map(len, column)) for column in texts) > _BYTES:
            for number, names in enumerate(zip(*texts, strict=True)):
                size += sum(map(len, names))
                if size > _BYTES:
                    yield start, number + 1
                    start, size = number + 1, 0
        if start < count:
            yield start, count

    def _batch(self, node: str, start: int, stop: int) -> pa.RecordBatch:
        count = stop - start
        arrays = []
        for field in SCHEMA:
            values = self.columns.get(field.name)
            if values is not None:
                arrays.append(pa.array(values[start:stop], field.type))
            elif field.name == "kind":
                arrays.append(pa.repeat(pa.scalar(self.kind, field.type), count))
            elif field.name == "node":
                arrays.append(pa.repeat(node, count))
            else:
                arrays.append(pa.nulls(count, field.type))
        return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


class FactBuffer:
    """The facts of one node that are not emitted yet."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._packed = 0
        self.notes = FactColumns(NODE, "at", "data")
        self.events = FactColumns(EVENTS, "session", "at", "data", "payload")
        self.spans = FactColumns(SPANS, "session", "at", "number", "data")
        self.effects = FactColumns(
            EFFECT, "session", "at", "ref", "time_ms", "number", "check", "topic", "size", "expires"
        )
        self.sent = FactColumns(
            *(SENT, "at", "ref", "time_ms", "number", "check", "topic", "digest"),
            *("size", "expires"),
        )
        self.released = FactColumns(RELEASED, "session", "at", "ref", "time_ms", "number")
        self.retained = FactColumns(
            *(RETAINED, "session", "at", "ref", "time_ms", "number", "check", "topic", "digest"),
            *("before", "expires"),
        )
        self.replays = FactColumns(
            REPLAY, "session", "at", "ref", "time_ms", "number", "topic", "expires"
        )
        self.carried = FactColumns(
            *(CARRIED, "session", "at", "ref", "time_ms", "number", "check", "topic", "digest"),
            *("size", "expires"),
        )
        self.wills = FactColumns(WILL, "at", "ref", "check", "topic")
        self.grants = FactColumns(GRANT, "session", "at", "time_ms", "number", "topic")
        self._all = [one for one in vars(self).values() if isinstance(one, FactColumns)]
        self.counts: Counter[int] = Counter()
        """Number of emitted facts of each kind."""

    def add_events(self, session: str, at: int, data: bytes, payload: bytes | None = None) -> None:
        """Add packed events of a session."""
        self.events.add(session, at, data, payload)
        self._packed += len(data) + len(payload or b"")

    def full(self) -> Iterator[pa.RecordBatch]:
        """Yield batches of the numerous kinds."""
        for rows in self._all:
            if len(rows) >= _ROWS:
                yield from self._take(rows)
        if self._packed >= _BYTES:
            self._packed = 0
            if len(self.events):
                yield from self._take(self.events)

    def rest(self) -> Iterator[pa.RecordBatch]:
        """Yield all remaining facts except notes."""
        for rows in self._all:
            if len(rows) and rows is not self.notes:
                yield from self._take(rows)

    def last(self) -> Iterator[pa.RecordBatch]:
        """Yield the notes."""
        if len(self.notes):
            yield from self._take(self.notes)

    def _take(self, rows: FactColumns) -> Iterator[pa.RecordBatch]:
        self.counts[rows.kind] += len(rows)
        yield from rows.take(self._node)
