"""The JSON form of each type of event: the fields, their order and their types.

It follows from ``eventstore.format.events``. Events of another form (an older version, a missing
mandatory field) are left to ``parse_event``, which reports errors if there are any.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from eventstore.format.event_parsing import VERSIONS, Event
from eventstore.format.turn_events import TurnEvent

_TURN_VERSION: Final = 1
"""Version of the events of several sessions."""
_BEGINS: Final[dict[Any, str]] = {str: '"', list: "[", dict: "{"}


@dataclass(frozen=True, slots=True)
class EventField:
    """A field of the events of a type."""

    number: int
    kinds: frozenset[Any]
    """The JSON types of its values: str, int, bool, list, dict or None."""
    literal: bytes
    """Its beginning, from the brace or comma before its name on."""
    name_size: int
    """Bytes of its name with quotes and colon."""


@dataclass(frozen=True, slots=True)
class EventShape:
    """The mandatory fields of events of a type, without name and version, which come last."""

    fields: dict[str, EventField]
    tail: bytes
    """The end of an event, from the comma before its name on."""
    added: tuple[bytes, ...]
    """The beginnings of optional fields behind these, from the comma before the name on."""


def _shape_of(kind: type) -> EventShape:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    added = tuple(f',"{one}":'.encode() for one in names[names.index("v") + 1 :])
    names = names[: names.index("e")]
    made = {name: _field(number, name, _kinds(hints[name])) for number, name in enumerate(names)}
    name = kind.__name__
    before = "," if made else "{"
    version = VERSIONS.get(name, _TURN_VERSION)
    return EventShape(made, f'{before}"e":"{name}","v":{version}}}'.encode(), added)


def _field(number: int, name: str, kinds: frozenset[Any]) -> EventField:
    named = f'"{name}":'
    begins = "".join(_BEGINS.get(one, "") for one in kinds) if len(kinds) == 1 else ""
    literal = ("," if number else "{") + named + begins
    return EventField(number, kinds, literal.encode(), len(named))


def _kinds(hint: Any) -> frozenset[Any]:
    several = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    kinds = (get_origin(one) or one for one in several)
    return frozenset(None if one is type(None) else one for one in kinds)


SHAPES: Final = {kind.__name__: _shape_of(kind) for kind in get_args(Event)}
"""Event type -> form of its events."""
TURN_SHAPES: Final = {kind.__name__: _shape_of(kind) for kind in get_args(TurnEvent)}
"""The same for the events of several sessions."""
