"""The interface to the stored records of a log, in NATS or in an archive."""

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Protocol

from eventstore.format.positions import Position
from protocol.errors import FoldmqError


class StoredLog(Protocol):
    """The records of one log. Small and picklable: it travels to executors.

    ``first`` and ``last`` are its sequences at planning, ``last`` one less than ``first`` if it has
    no records; ``size`` is the approximate sum of their bytes; ``borders`` are the best sequences
    for the beginning of a partition, empty: all are equal.
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
        """Approximate bytes."""

    @property
    def borders(self) -> tuple[int, ...]:
        """Sequences at which reading can begin cheaply."""

    def read(self, first: int, last: int) -> Generator[tuple[int, bytes]]:
        """Yield (sequence, bytes) between two sequences, both included, in order, each once.

        Missing records are not yielded: the caller checks gaps, checksums and the chain. Closing
        the iterator releases its resources.
        """

    def link_before(self, sequence: int) -> bytes | None:
        """Return the link of the record before a sequence; None if it must be read for that."""

    def around(self, time_ms: int) -> tuple[int, int]:
        """Return the range of records that contains the last one not later than a time.

        Both ends are included; the first may be the one before the first existing record.
        """

    def explain(self, sequence: int) -> FoldmqError | None:
        """Return why a record that existed at planning no longer does; None: it is missing."""

    def place(self, sequence: int) -> str:
        """Return the place of a record for messages; empty if the name of the log suffices."""


def open_records(stored: StoredLog, first: int, last: int) -> closing[Generator[tuple[int, bytes]]]:
    """Return the records between two sequences as a context, at whose end they are closed."""
    return closing(stored.read(first, last))


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
