"""The interface to the stored records of a log, in NATS or in an archive."""

from __future__ import annotations

from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.format import Position
    from protocol.errors import FoldmqError


class StoredLog(Protocol):
    """The records of one log. Small and picklable: it travels to executors.

    ``first`` and ``last`` are the sequences that it has as of planning, ``last`` one less than
    ``first`` when there are none; ``size`` is about how many bytes they are together;
    ``borders`` are the sequences at which a partition had best begin, none: it does not matter.
    """

    @property
    def stream(self) -> str:
        """The name of the log: of its stream in NATS."""

    @property
    def first(self) -> int:
        """Sequence of the first record."""

    @property
    def last(self) -> int:
        """Sequence of the last record."""

    @property
    def size(self) -> int:
        """Bytes, about."""

    @property
    def borders(self) -> tuple[int, ...]:
        """Sequences of records with which it is cheap to begin."""

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield (sequence, bytes) between two sequences, both included, in order, each once.

        What is missing is not yielded: the caller looks for gaps, checksums and the chain.
        Closing the iterator frees all that it holds.
        """

    def link_before(self, sequence: int) -> bytes | None:
        """Return the link of the record before one; None if it is not known without reading it."""

    def around(self, time_ms: int) -> tuple[int, int]:
        """Return between which records the last one lies that is not later than a time.

        Both are included; the first may be the one before all that there are.
        """

    def explain(self, sequence: int) -> FoldmqError | None:
        """Return why a record that existed at planning no longer does; None: it is missing."""

    def place(self, sequence: int) -> str:
        """Return where a record is stored, for a person; empty if the name of the log says it."""


@contextmanager
def open_records(stored: StoredLog, first: int, last: int) -> Iterator[Iterator[tuple[int, bytes]]]:
    """Yield an iterator of the records between two sequences; close it when the block is left."""
    records = stored.read(first, last)
    try:
        yield records
    finally:
        close = getattr(records, "close", None)
        if close is not None:
            close()


@dataclass(frozen=True, slots=True)
class RecordRange:
    """Consecutive records of a log, read by one task."""

    stored: StoredLog
    first: int
    """Sequence of the first record."""
    last: int
    """Sequence of the last record."""
    horizon: int
    """Sequence of the last record considered: a turn that ends behind it is unfinished."""
    start: Position = 0
    """The first position to return."""
    until: Position | None = None
    """The last position to return; None: no limit within the records."""
