"""The erasures that a log records: what was erased, when and by whom."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from eventstore.display import iso
from eventstore.format.erasure_events import Erased, ErasureRequested, KeysSnapshot
from eventstore.format.name_entries import topic_shown
from eventstore.format.positions import INDEX_BITS, from_runs

if TYPE_CHECKING:
    from eventstore.format.positions import Position
    from eventstore.format.records import Record

ERASURE_EVENTS: Final = tuple(
    f'"e":"{kind.__name__}"'.encode() for kind in (Erased, ErasureRequested, KeysSnapshot)
)
"""What the JSON of a record has that says something about erasures."""


@dataclass(slots=True)
class ErasureEntry:
    """An erasure."""

    number: int
    at: Position
    requested_ms: int
    """Time of the request, Unix time in milliseconds."""
    by: str
    cause: str
    topics: list[str]
    """Each topic once, and tokens of names with their kind, such as ``client ~TOKEN``."""
    keys: int
    before_ms: int = 0
    """Contents of periods that ended up to here, Unix time in milliseconds; 0: all."""
    done_ms: int = 0
    """Time at which its keys were destroyed; 0: that is not finished."""

    def fields(self) -> dict[str, Any]:
        """Return it as JSON."""
        return {
            "erasure": self.number,
            "requested": iso(self.requested_ms),
            "by": self.by,
            "cause": self.cause,
            "topics": self.topics,
            "keys": self.keys,
            "before": iso(self.before_ms) if self.before_ms else None,
            "done": iso(self.done_ms) if self.done_ms else None,
        }


class ErasureList:
    """Collects the erasures of the records of one log, which are expected in order."""

    def __init__(self) -> None:
        self.entries: list[ErasureEntry] = []
        self.cut_off = 0
        """Number of erasures whose requests were cut off: these have the first numbers."""
        self.pending_before = False
        """Whether the last of those is not known to be finished."""

    def take(self, record: Record) -> None:
        """Add what a record has; raises UnreadableEvent."""
        base = record.sequence << INDEX_BITS
        for index, event in record.events():
            if isinstance(event, ErasureRequested):
                entry = ErasureEntry(
                    event.erasure,
                    base + index,
                    record.time_ms,
                    event.by,
                    event.cause,
                    [*dict.fromkeys(map(topic_shown, event.topics))],
                    len(from_runs(event.keys)),
                    event.before_ms and event.before_ms + record.jumps.total_ms,
                )
                self.entries.append(entry)
            elif isinstance(event, Erased):
                self.pending_before = False
                if self.entries and self.entries[-1].number == event.erasure:
                    self.entries[-1].done_ms = record.time_ms
            elif isinstance(event, KeysSnapshot) and not self.entries:
                self.cut_off, self.pending_before = event.erasure, bool(event.pending)
