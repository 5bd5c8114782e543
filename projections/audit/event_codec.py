"""Serializes and collects events of one session, for the transfer from the scan to the audit.

An event is a JSON array: position, time, part of its record, its fields in their order, and its
type. Fields declared behind the version precede the type, either all or none. Events are validated
once, and not again when they are unpacked.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from operator import attrgetter
from typing import Any, TypeAlias, get_args

import orjson

from eventstore.format.event_parsing import VERSIONS, Event
from eventstore.format.positions import Position
from projections.audit.fact_buffer import FactBuffer

Packed: TypeAlias = tuple["Position", int, int, Event]
"""Position of an event, time in milliseconds, part of its record in its turn, and the event."""


def _reader(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns some fields of an event, and its type."""
    if names:
        return attrgetter(*names, "e")
    return lambda event: (event.e,)


class _Layout:
    """The serialized form of the events of a type."""

    __slots__ = ("added", "defaults", "kind", "owned", "usual", "version", "whole", "width")

    def __init__(self, kind: type) -> None:
        names = [attribute.name for attribute in fields(kind)]
        usual, added = names[: names.index("e")], names[names.index("v") + 1 :]
        self.kind: Any = kind
        self.version: int = VERSIONS[kind.__name__]
        self.owned = usual[:1] == ["session"]
        """Whether the first field is the session, which is not packed."""
        if self.owned:
            del usual[0]
        self.usual = _reader(usual)
        """Returns the fields that all events have, and the type."""
        self.width = len(usual)
        """Number of those fields, without the type."""
        self.whole = _reader([*usual, *added]) if added else None
        """Returns the added fields as well; None: there are none."""
        get: Any = attrgetter(*added) if added else _nothing
        self.added: Callable[[Any], Any] = get
        """Returns only the added fields."""
        self.defaults: Any = get(kind(*[None] * names.index("e")))
        """Its result if all added fields have their defaults."""


def _nothing(_event: object) -> None:
    """Return None: the event type has no added fields."""


_LAYOUTS: dict[type, _Layout] = {kind: _Layout(kind) for kind in get_args(Event)}
_BY_NAME: dict[str, _Layout] = {kind.__name__: layout for kind, layout in _LAYOUTS.items()}


def packed_item(event: Event, at: Position, time_ms: int, part: int) -> tuple[Any, ...]:
    """Return an item for :func:`pack_events`."""
    layout = _LAYOUTS[type(event)]
    if layout.whole is None or layout.added(event) == layout.defaults:
        return (at, time_ms, part, *layout.usual(event))
    return (at, time_ms, part, *layout.whole(event))


def pack_events(items: Sequence[tuple[Any, ...]]) -> bytes:
    """Return events of one session as bytes."""
    return orjson.dumps(items)


def unpack_events(session: str, data: bytes) -> list[Packed]:
    """Return the packed events, in order."""
    events: list[Packed] = []
    for at, time_ms, part, *values in orjson.loads(data):
        name = values[-1]
        layout = _BY_NAME[name]
        usual = layout.width
        if len(values) > usual + 1:
            values[usual:] = [name, layout.version, *values[usual:-1]]
        event = layout.kind(session, *values) if layout.owned else layout.kind(*values)
        events.append((at, time_ms, part, event))
    return events


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

    def add(self, session: str, item: tuple[Any, ...]) -> None:
        """Add an event."""
        self.items.setdefault(session, []).append(item)

    def alone(self, session: str, item: tuple[Any, ...], payload: bytes) -> None:
        """Emit an event with its payload, after the earlier ones."""
        self._give(session, self.items.pop(session, None))
        self._facts.add_events(session, item[0], pack_events([item]), payload)

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
