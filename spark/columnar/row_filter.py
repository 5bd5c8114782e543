"""Filters of rows: those that a query pushed down, and the positions that it reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eventstore.nats import LOG_STREAM_PREFIX

if TYPE_CHECKING:
    from eventstore.format import Position
    from spark.columnar.event_groups import EventGroup


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Types and sessions (None: all of them), and the first and last position (both included)."""

    types: frozenset[str] | None = None
    sessions: frozenset[str] | None = None
    first: Position = 0
    last: Position | None = None

    def of(self, group: EventGroup) -> EventGroup | None:
        """Return the events of a group that are wanted, None when there are none."""
        if self.types is not None and group.kind not in self.types:
            return None
        if self.sessions is None:
            return group
        if not group.has("session"):
            return None
        found = group.strings("session").to_pylist()
        keep = [at for at, session in enumerate(found) if session in self.sessions]
        if len(keep) == len(found):
            return group
        return group.some(keep) if keep else None


@dataclass(frozen=True, slots=True)
class PushedFilters:
    """The filters of a query that were pushed down; None: no filter."""

    nodes: frozenset[str] | None = None
    types: frozenset[str] | None = None
    sessions: frozenset[str] | None = None
    first_sequence: int = 0
    last_sequence: int | None = None
    since_ms: int | None = None
    until_ms: int | None = None

    def excludes(self, stream: str) -> bool:
        """Return whether no record of a log can be wanted.

        Whose records are in a stream with another name, such as a copy, only they can tell.
        """
        if self.nodes is None or not stream.startswith(LOG_STREAM_PREFIX):
            return False
        return stream.removeprefix(LOG_STREAM_PREFIX) not in self.nodes

    def wanted(self, first: Position, last: Position | None) -> RowFilter:
        """Return which rows of a record are."""
        return RowFilter(self.types, self.sessions, first, last)
