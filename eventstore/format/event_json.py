"""The JSON object of an event in a record, and its size.

Fields that an event declares after its version ``v`` were added later. They are left out where
they have their default, so that an event that does not use them takes the same bytes as before. Its
type and version still come last.
"""

from collections.abc import Callable, Sequence
from dataclasses import MISSING, fields
from functools import partial
from operator import attrgetter
from typing import Any, Final, TypeAlias, get_args

import orjson

from eventstore.format.event_parsing import Event, LogEvent
from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    MessagePublished,
    Queued,
    Received,
    Released,
    SessionOpened,
    Subscribed,
)
from eventstore.format.turn_events import (
    TurnAcked,
    TurnDelivered,
    TurnEvent,
    TurnPublished,
    TurnReleased,
)

_Object: TypeAlias = dict[str, Any]

_OFFSET_BYTES: Final = 20
"""Bytes by which an event's JSON may still grow when its payloads get their offset."""


def json_object(event: LogEvent) -> LogEvent | _Object:
    """Return the object that orjson writes for an event."""
    write = WRITERS.get(type(event))
    return event if write is None else write(event)


def field_values(event: LogEvent) -> _Object:
    """Return the written fields of an event, by name."""
    fields_of = json_object(event)
    if isinstance(fields_of, dict):
        return fields_of
    return {column.name: getattr(event, column.name) for column in fields(event)}


def _added(kind: type) -> dict[str, Any]:
    """Return the fields that were added to an event type, with their defaults."""
    columns = fields(kind)
    names = [column.name for column in columns]
    return {
        column.name: column.default
        if column.default_factory is MISSING
        else column.default_factory()
        for column in columns[names.index("v") + 1 :]
    }


_ADDED: Final = {
    kind: added for kind in get_args(Event) + get_args(TurnEvent) if (added := _added(kind))
}


def _with_added(target: _Object, event: LogEvent) -> _Object:
    """Add the later fields that differ from their default, before type and version."""
    kind, version = target.pop("e"), target.pop("v")
    for name, default in _ADDED[type(event)].items():
        value = getattr(event, name)
        if value != default and value != []:
            target[name] = value
    target["e"], target["v"] = kind, version
    return target


def _any_other(names: tuple[str, ...], values: Callable[[Any], Any], event: LogEvent) -> _Object:
    return _with_added(dict(zip(names, values(event), strict=False)), event)


# The most frequent events are written out in full: this takes half the time.


def _published(event: MessagePublished) -> _Object:
    target = {
        "session": event.session,
        "qos": event.qos,
        "retain": event.retain,
        "topics": event.topics,
        "which": event.which,
        "pids": event.pids,
        "sizes": event.sizes,
        "at": event.at,
        "count": event.count,
        "will": event.will,
        "properties": event.properties,
        "e": event.e,
        "v": event.v,
    }
    return _with_added(target, event) if event.blocks or event.origins else target


def _delivered(event: Delivered) -> _Object:
    target = {
        "session": event.session,
        "filter": event.filter,
        "qos": event.qos,
        "pids": event.pids,
        "refs": event.refs,
        "retain": event.retain,
        "queued": event.queued,
        "e": event.e,
        "v": event.v,
    }
    return _with_added(target, event) if event.rap else target


def _queued(event: Queued) -> _Object:
    target = {
        "session": event.session,
        "filter": event.filter,
        "qos": event.qos,
        "refs": event.refs,
        "size": event.size,
        "retain": event.retain,
        "e": event.e,
        "v": event.v,
    }
    return _with_added(target, event) if event.expires or event.behind >= 0 else target


def _acknowledged(event: Acked | Received | Completed) -> _Object:
    target = {"session": event.session, "pids": event.pids, "e": event.e, "v": event.v}
    return _with_added(target, event) if event.reasons else target


def _writer(kind: type) -> Callable[[Any], _Object]:
    names = [column.name for column in fields(kind)]
    usual = tuple(names[: names.index("v") + 1])
    return partial(_any_other, usual, attrgetter(*usual))


WRITERS: Final[dict[type, Callable[[Any], _Object]]] = {
    **{kind: _writer(kind) for kind in _ADDED},
    MessagePublished: _published,
    Delivered: _delivered,
    Queued: _queued,
    Acked: _acknowledged,
    Received: _acknowledged,
    Completed: _acknowledged,
}
"""Event type -> function that builds its JSON object; orjson writes the other events directly."""


# The size of an event before it is encoded.


def _text(names: Sequence[str]) -> int:
    """Return the characters of some names, including the JSON syntax around them."""
    return sum(map(len, names)) + len(names)


def _opened_text(event: SessionOpened) -> int:
    text = len(event.session) + len(event.address) + len(event.user or "")
    return text + len(orjson.dumps(event.properties)) if event.properties else text


def _pairs_text(filters: Sequence[tuple[str, int]]) -> int:
    """Return the characters of filters with QoS and options, including the JSON syntax."""
    return sum(len(topic_filter) for topic_filter, _ in filters) + 12 * len(filters)


def json_size(event: LogEvent) -> int:
    """Return the largest size in bytes of an event's JSON, without its payloads."""
    return len(orjson.dumps(json_object(event))) + _OFFSET_BYTES


TEXT_LENGTHS: Final[dict[type[LogEvent], Callable[[Any], int]]] = {
    MessagePublished: lambda event: len(event.session) + sum(map(len, event.topics)),
    Delivered: lambda event: len(event.session) + len(event.filter),
    Queued: lambda event: len(event.session) + len(event.filter),
    Acked: lambda event: len(event.session),
    Received: lambda event: len(event.session),
    Completed: lambda event: len(event.session),
    SessionOpened: _opened_text,
    Subscribed: lambda event: len(event.session) + _pairs_text(event.filters),
    Released: lambda event: len(event.session),
    TurnPublished: lambda event: _text(event.sessions) + _text(event.topics),
    TurnDelivered: lambda event: _text(event.sessions) + _text(event.filters),
    TurnAcked: lambda event: _text(event.sessions),
    TurnReleased: lambda event: _text(event.sessions),
}
"""Event type -> characters of its text, for the most frequent types; others are measured."""
