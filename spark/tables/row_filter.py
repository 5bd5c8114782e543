"""Filters of rows: those pushed down by a query, and its range of positions."""

from dataclasses import dataclass

from eventstore.format.positions import Position
from eventstore.nats.discovery import LOG_STREAM_PREFIX


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Types and sessions (None: all of them), and the first and last position (both included)."""

    types: frozenset[str] | None = None
    sessions: frozenset[str] | None = None
    first: Position = 0
    last: Position | None = None


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The pushed-down filters of a query; None: no filter."""

    nodes: frozenset[str] | None = None
    types: frozenset[str] | None = None
    sessions: frozenset[str] | None = None
    first_sequence: int = 0
    last_sequence: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def excludes(self, stream: str) -> bool:
        """Return whether no record of a log can match.

        If the stream has another name, such as that of a copy, only its records reveal the node.
        """
        if self.nodes is None or not stream.startswith(LOG_STREAM_PREFIX):
            return False
        return stream.removeprefix(LOG_STREAM_PREFIX) not in self.nodes

    def wanted(self, first: Position, last: Position | None) -> RowFilter:
        """Return the filter for the rows of a record."""
        return RowFilter(self.types, self.sessions, first, last)
