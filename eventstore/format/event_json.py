"""What stands in a record for an event: a JSON object.

The fields that an event declares behind its version ``v`` were added later. They are left out where
they have their default, so that an event that does not use them takes the bytes that it always
took. Its type and version come last all the same.
"""

from __future__ import annotations

from dataclasses import MISSING, Field, fields
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, get_args

from eventstore.format.events import Event
from eventstore.format.turn_events import TurnEvent

if TYPE_CHECKING:
    from collections.abc import Callable

    from eventstore.format.events import LogEvent


class _Form(NamedTuple):
    """The fields of an event type to which some were added."""

    usual: tuple[str, ...]
    """Those that are always written."""
    values: Callable[[Any], tuple[Any, ...]]
    """Return their values."""
    added: dict[str, Any]
    """Those that are written where they differ from their default, and that."""
    later: Callable[[Any], Any]
    """Return the values of these."""
    defaults: Any
    """What it returns when all have their default."""


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _form(kind: type) -> _Form | None:
    """Return the form of an event type; None when no field was added to it."""
    columns = fields(kind)
    usual = tuple(one.name for one in columns)
    usual = usual[: usual.index("v") + 1]
    added = {one.name: _default(one) for one in columns[len(usual) :]}
    if not added:
        return None
    defaults = tuple(added.values())
    return _Form(
        usual,
        attrgetter(*usual),
        added,
        attrgetter(*added),
        defaults if len(defaults) > 1 else defaults[0],
    )


_FORMS: Final = {
    kind: form for kind in get_args(Event) + get_args(TurnEvent) if (form := _form(kind))
}


def field_values(event: LogEvent) -> dict[str, Any]:
    """Return the fields that are written for an event, by name."""
    found = json_object(event)
    if isinstance(found, dict):
        return found
    return {one.name: getattr(event, one.name) for one in fields(event)}


def json_object(event: LogEvent) -> LogEvent | dict[str, Any]:
    """Return what orjson is to write for an event."""
    form = _FORMS.get(type(event))
    if form is None:
        return event
    found = dict(zip(form.usual, form.values(event), strict=False))
    if form.later(event) != form.defaults:
        kind, version = found.pop("e"), found.pop("v")
        for name, default in form.added.items():
            value = getattr(event, name)
            if value != default:
                found[name] = value
        found["e"], found["v"] = kind, version
    return found
