"""The JSON form of each type of event: the fields, their order and their types.

All of it follows from ``eventstore.format.events``. What is written otherwise (an older version, a
field that is missing although it always stands there) is for ``parse_event``, which says what is
wrong if anything is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, Final, get_args, get_origin, get_type_hints

from eventstore.format import VERSIONS, Event

_BEGINS: Final[dict[Any, str]] = {str: '"', list: "[", dict: "{"}


@dataclass(frozen=True, slots=True)
class EventField:
    """A field of the events of a type."""

    number: int
    kinds: frozenset[Any]
    """What its values are in JSON: str, int, bool, list, dict or None."""
    literal: bytes
    """How it begins, from the brace or comma before its name on."""
    name_size: int
    """Bytes of its name with quotes and colon."""


@dataclass(frozen=True, slots=True)
class EventShape:
    """The fields that events of a type always have, without name and version, which come last."""

    fields: dict[str, EventField]
    tail: bytes
    """How it ends, from the comma before its name on."""
    added: tuple[bytes, ...]
    """How each field begins that an event may have behind these, from the comma before its name."""


def _shape_of(kind: type) -> EventShape:
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    added = tuple(f',"{one}":'.encode() for one in names[names.index("v") + 1 :])
    names = names[: names.index("e")]
    made = {name: _field(number, name, _kinds(hints[name])) for number, name in enumerate(names)}
    name = kind.__name__
    before = "," if made else "{"
    return EventShape(made, f'{before}"e":"{name}","v":{VERSIONS[name]}}}'.encode(), added)


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
"""Event type -> how its events are written."""
