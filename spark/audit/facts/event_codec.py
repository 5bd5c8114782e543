"""Serializes events of one session for the way from the scan of the log to the audit.

An event is a JSON array: position, time, part of its record, its fields in their order, and its
type. Fields declared behind the version precede the type, either all or none. Events are validated
once, and not again when they are unpacked.
"""

from __future__ import annotations

from dataclasses import fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_args

import orjson

from eventstore.format import VERSIONS, Event

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from eventstore.format import Position

Packed: TypeAlias = tuple["Position", int, int, Event]
"""Position of an event, time in milliseconds, part of its record in its turn, and the event."""

_KINDS: dict[str, type] = {kind.__name__: kind for kind in get_args(Event)}
_OWNED = frozenset(
    name for name, kind in _KINDS.items() if next(iter(fields(kind))).name == "session"
)
"""Types whose first field is the session, which is not packed."""


def _reader(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return a function that returns some fields of an event, and its type."""
    if names:
        return attrgetter(*names, "e")
    return lambda event: (event.e,)


class _Layout(NamedTuple):
    """The serialized form of the events of a type."""

    usual: Callable[[Any], tuple[Any, ...]]
    """Returns the fields that all events have, and the type."""
    width: int
    """Number of those fields, without the type."""
    all: Callable[[Any], tuple[Any, ...]] | None
    """Returns the added fields as well; None: there are none."""
    added: Callable[[Any], Any]
    """Returns only the added fields."""
    defaults: Any
    """Its result if all added fields have their defaults."""


def _layout(kind: type) -> _Layout:
    names = [one.name for one in fields(kind)]
    usual, added = names[: names.index("e")], names[names.index("v") + 1 :]
    if kind.__name__ in _OWNED:
        del usual[0]
    if not added:
        return _Layout(_reader(usual), len(usual), None, _nothing, None)
    get = attrgetter(*added)
    defaults = get(kind(*[None] * names.index("e")))
    return _Layout(_reader(usual), len(usual), _reader([*usual, *added]), get, defaults)


def _nothing(_event: object) -> None:
    """Return None: the event type has no added fields."""


_LAYOUTS = {kind: _layout(kind) for kind in _KINDS.values()}


def packed_item(event: Event, at: Position, time_ms: int, part: int) -> tuple[Any, ...]:
    """Return an item for :func:`pack_events`."""
    layout = _LAYOUTS[type(event)]
    if layout.all is None or layout.added(event) == layout.defaults:
        return (at, time_ms, part, *layout.usual(event))
    return (at, time_ms, part, *layout.all(event))


def pack_events(items: Sequence[tuple[Any, ...]]) -> bytes:
    """Return events of one session as bytes."""
    return orjson.dumps(items)


def unpack_events(session: str, data: bytes) -> list[Packed]:
    """Return the packed events, in order."""
    found: list[Packed] = []
    for at, time_ms, part, *values in orjson.loads(data):
        name = values[-1]
        kind = _KINDS[name]
        usual = _LAYOUTS[kind].width
        if len(values) > usual + 1:
            values[usual:] = [name, VERSIONS[name], *values[usual:-1]]
        event = kind(session, *values) if name in _OWNED else kind(*values)
        found.append((at, time_ms, part, event))
    return found
