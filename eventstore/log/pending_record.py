"""The output of the journal: closed records for the store, and effects for the sinks.

The output of a turn, its *effects*, belongs to the last record of that turn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol

from eventstore.format.records import link_of

LARGE_PAYLOAD: Final[int] = 16 * 1024
"""Mean payload size in bytes from which output and records are not joined into one piece: copying
them costs more than handling the pieces."""


class OutputSink(Protocol):
    """A receiver of effects: a connection.

    A sink with a method ``writelines`` gets large output in pieces, which are not joined.
    """

    waits_for: GatedOutput | None
    """The effects that this sink waits for, see :meth:`Journal.send_unlogged`."""
    gated: int
    """Bytes that wait at the gate for this sink; the journal keeps the count."""

    def write(self, data: bytes) -> None:
        """Write bytes whose events are on disk."""


class GatedOutput(dict[OutputSink, list[bytes]]):
    """The effects of one turn: the bytes for each sink, in order."""

    __slots__ = ()
    __hash__ = object.__hash__  # type: ignore[assignment]  # compared by identity only


class PendingRecord:
    """A closed record that is not known to be on disk."""

    __slots__ = (
        "begun",
        "effects",
        "entries",
        "events",
        "last",
        "pieces",
        "sent_at",
        "sequence",
        "size",
    )

    def __init__(
        self,
        sequence: int,
        pieces: Sequence[bytes],
        effects: list[GatedOutput],
        events: int,
        entries: int,
        *,
        last: bool = True,
        begun: float = 0.0,
    ) -> None:
        self.sequence = sequence
        self.begun = begun
        """Monotonic time at which its first event was appended."""
        self.last = last
        """Whether a turn ends with it."""
        self.pieces = pieces
        """Its bytes; the first piece has the whole head."""
        self.size = sum(map(len, pieces))
        """Its bytes in total."""
        self.effects = effects
        self.events = events
        self.entries = entries
        self.sent_at = 0.0
        """Monotonic time of the last attempt, set by the store."""

    @property
    def link(self) -> bytes:
        """The link by which the next record names it."""
        return link_of(self.pieces[0])

    @property
    def data(self) -> bytes:
        """Its bytes in one piece."""
        return b"".join(self.pieces)


class RecordStore(Protocol):
    """Appends records: JetStream, or a simulation."""

    def send(self, record: PendingRecord) -> None:
        """Append a record under its sequence; call ``Journal.committed`` when it is on disk."""
