"""Collects facts by column: those of a scan, and those that folds yield."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import compress, islice, repeat
from typing import Any, TypeAlias

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

Fold: TypeAlias = "Callable[[Iterable[tuple[Any, ...]]], Iterable[tuple[Any, ...]]]"
"""See ``projections.audit.log_folds``."""

_ROWS = 8192
"""Maximum facts of a chunk."""
_BYTES = 4 * 1024 * 1024
"""Approximate maximum bytes of packed events in a chunk."""


class FactChunk:
    """Facts by column, among them ``kind``; columns that are missing are null."""

    __slots__ = ("columns",)

    def __init__(self, columns: Mapping[str, Sequence[Any]]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        """Return the number of facts."""
        return len(self.columns["kind"])

    def rows(self, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
        """Yield the values of some columns, fact by fact."""
        count = len(self)
        values = (self.columns.get(name) for name in names)
        columns = (repeat(None, count) if column is None else column for column in values)
        return zip(*columns, strict=True)

    def kept(self, keep: Sequence[bool]) -> FactChunk:
        """Return those facts for which a value is true."""
        if all(keep):
            return self
        return FactChunk(
            {name: list(compress(column, keep)) for name, column in self.columns.items()}
        )


def folded(
    fold: Fold, rows: Iterable[tuple[Any, ...]], results: Sequence[str]
) -> Iterator[FactChunk]:
    """Yield the results of a fold, whose rows have the columns ``results``."""
    results_left = iter(fold(rows))
    while rows := list(islice(results_left, MANY_ROWS)):
        yield FactChunk(dict(zip(results, zip(*rows, strict=True), strict=True)))


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
        for column, cells in zip(self.columns.values(), values, strict=True):
            column.extend(cells)

    def take(self, node: str) -> Iterator[FactChunk]:
        """Yield the facts as chunks, and reset."""
        for start, stop in self._pieces():
            yield self._chunk(node, start, stop)
        for values in self.columns.values():
            values.clear()

    def _pieces(self) -> Iterator[tuple[int, int]]:
        """Yield the range of rows of each chunk: names may have 64 KiB, and repeat."""
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

    def _chunk(self, node: str, start: int, stop: int) -> FactChunk:
        columns: dict[str, Sequence[Any]] = {
            name: values[start:stop] for name, values in self.columns.items()
        }
        count = stop - start
        return FactChunk({"kind": [self.kind] * count, "node": [node] * count, **columns})


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
        self._all = [columns for columns in vars(self).values() if isinstance(columns, FactColumns)]
        self.counts: Counter[int] = Counter()
        """Number of emitted facts of each kind."""

    def add_events(self, session: str, at: int, data: bytes, payload: bytes | None = None) -> None:
        """Add packed events of a session."""
        self.events.add(session, at, data, payload)
        self._packed += len(data) + len(payload or b"")

    def full(self) -> Iterator[FactChunk]:
        """Yield chunks of the numerous kinds."""
        for rows in self._all:
            if len(rows) >= _ROWS:
                yield from self._take(rows)
        if self._packed >= _BYTES:
            self._packed = 0
            if len(self.events):
                yield from self._take(self.events)

    def rest(self) -> Iterator[FactChunk]:
        """Yield all remaining facts except notes."""
        for rows in self._all:
            if len(rows) and rows is not self.notes:
                yield from self._take(rows)

    def last(self) -> Iterator[FactChunk]:
        """Yield the notes."""
        if len(self.notes):
            yield from self._take(self.notes)

    def _take(self, rows: FactColumns) -> Iterator[FactChunk]:
        self.counts[rows.kind] += len(rows)
        yield from rows.take(self._node)
