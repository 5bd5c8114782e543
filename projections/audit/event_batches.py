"""Collects the events of sessions over several records, to transfer fewer rows."""

from typing import Any

from eventstore.format.positions import Position
from projections.audit.event_codec import pack_events
from projections.audit.fact_buffer import FactBuffer

_EVENTS = 16_384
_BYTES = 8 * 1024 * 1024
"""Maximum events, and bytes of records, that are collected."""


class EventBatches:
    """Events by session; those of one session stay in order."""

    __slots__ = ("_bytes", "_events", "_facts", "items")

    def __init__(self, facts: FactBuffer) -> None:
        self._facts = facts
        self.items: dict[str, list[tuple[Any, ...]]] = {}
        self._events = self._bytes = 0

    def add(self, session: str, one: tuple[Any, ...]) -> None:
        """Add an event."""
        self.items.setdefault(session, []).append(one)

    def alone(self, session: str, one: tuple[Any, ...], payload: bytes) -> None:
        """Emit an event with its payload, after the earlier ones."""
        self._give(session, self.items.pop(session, None))
        self._facts.add_events(session, one[0], pack_events([one]), payload)

    def counted(self, events: int, size: int) -> None:
        """Count a record; emit all events when they are many."""
        self._events += events
        self._bytes += size
        if self._events >= _EVENTS or self._bytes >= _BYTES:
            self.give()

    def give(self) -> None:
        """Emit all events."""
        for session, items in self.items.items():
            self._give(session, items)
        self.items = {}
        self._events = self._bytes = 0

    def _give(self, session: str, items: list[tuple[Any, ...]] | None) -> None:
        if items:
            at: Position = items[0][0]
            self._facts.add_events(session, at, pack_events(items))
