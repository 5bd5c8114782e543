"""Events of one session as bytes, as they travel from the scan of the log to the audit.

An event is a JSON array: position, time, part of its record, its fields in their order, and its
type. The fields that are declared behind the version stand before the type, all or none. What was
validated once is not validated again.
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
"""Types of which the first field is the session: it is not packed."""


def _reader(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    """Return what gives some fields of an event, and its type."""
    if names:
        return attrgetter(*names, "e")
    return lambda event: (event.e,)


class _Layout(NamedTuple):
    """How events of a type are packed."""

    usual: Callable[[Any], tuple[Any, ...]]
    """Return the fields that all have, and the type."""
    width: int
    """How many they are, without the type."""
    all: Callable[[Any], tuple[Any, ...]] | None
    """Return those that were added as well; None: there are none."""
    added: Callable[[Any], Any]
    """Return only those."""
    defaults: Any
    """What it returns when each has its default."""


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
    """Return what an event without added fields has of them."""


_LAYOUTS = {kind: _layout(kind) for kind in _KINDS.values()}


def packed_item(event: Event, at: Position, time_ms: int, part: int) -> tuple[Any, ...]:
    """Return what :func:`pack_events` takes."""
    layout = _LAYOUTS[type(event)]
    if layout.all is None or layout.added(event) == layout.defaults:
        return (at, time_ms, part, *layout.usual(event))
    return (at, time_ms, part, *layout.all(event))


def pack_events(items: Sequence[tuple[Any, ...]]) -> bytes:
    """Return events of one session as bytes."""
    return orjson.dumps(items)


def unpack_events(session: str, data: bytes) -> list[Packed]:
    """Return the events that were packed, in order."""
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
