"""Events of one session as bytes, as they travel from the scan of the log to the audit.

An event is a JSON array: position, time, part of its record, its fields in their order, and its
type. What was validated once is not validated again.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeAlias, get_args

import orjson

from eventstore.format import Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventstore.format import Position

Packed: TypeAlias = tuple["Position", int, int, Event]
"""Position of an event, time in milliseconds, part of its record in its turn, and the event."""

_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_OWNED = frozenset(
    name for name, kind in _KINDS.items() if next(iter(fields(kind))).name == "session"
)
"""Types of which the first field is the session: it is not packed."""


def _reader(kind: type) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives the fields of an event; the last is ``e``, its type."""
    names = [one.name for one in fields(kind) if one.name != "v"]
    if kind.__name__ in _OWNED:
        del names[0]
    if len(names) > 1:
        return attrgetter(*names)
    return lambda event: (event.e,)


_READERS = {kind: _reader(kind) for kind in _KINDS.values()}


def packed_item(event: Event, at: Position, time_ms: int, part: int) -> tuple[Any, ...]:
    """Return what :func:`pack_events` takes."""
    return (at, time_ms, part, *_READERS[type(event)](event))


def pack_events(items: Sequence[tuple[Any, ...]]) -> bytes:
    """Return events of one session as bytes."""
    return orjson.dumps(items)


def unpack_events(session: str, data: bytes) -> list[Packed]:
    """Return the events that were packed, in order."""
    found: list[Packed] = []
    for at, time_ms, part, *values in orjson.loads(data):
        name = values[-1]
        kind = _KINDS[name]
        event = kind(session, *values) if name in _OWNED else kind(*values)
        found.append((at, time_ms, part, event))
    return found
