"""Values of the columns of rows=entries for each type of event.

A *maker* returns the values of one column for the events of one type: one for each event, which its
entries share, or one for each entry. Most makers follow from the fields of the event types; this
module contains the others.
"""

from __future__ import annotations

from dataclasses import fields
from functools import lru_cache
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    NamedTuple,
    TypeAlias,
    get_args,
    get_origin,
    get_type_hints,
)

import numpy as np
import orjson

from eventstore.format.event_parsing import Event
from eventstore.format.positions import from_runs
from protocol.errors import FoldmqError
from protocol.mqtt.message_properties import MessageProperties, decode_message_properties
from spark.tables.columns import ENTRIES
from spark.tables.event_groups import MESSAGES, EventGroup, UnusualEvent, lengths_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from spark.tables.arrays import Integers

    Maker: TypeAlias = Callable[[EventGroup], "Cells"]

_KNOWN_BLOCKS: Final = 4096


class Cells(NamedTuple):
    """The cells of one type of event in one column."""

    values: Sequence[Any] | Integers
    """None: null."""
    where: Integers | None = None
    """For each entry, the index of its value (-1: null); None: one value each, in order."""


def _of_field(name: str) -> Maker:
    return lambda group: Cells(*group.field(name))


def _of_object(name: str) -> Maker:
    """Return a maker for a JSON object."""
    return lambda group: Cells([_json(value) for value in group.values(name)], group.event_of)


def _json(value: Any) -> str | None:
    return None if value is None else orjson.dumps(value).decode()


def _of_runs(name: str) -> Maker:
    return lambda group: Cells(group.each(name))


def _of_optional_runs(name: str) -> Maker:
    return lambda group: Cells(*group.optional(name))


def _total(name: str) -> Maker:
    """Return a maker for a sum over an event: at its first entry, 0 at the others."""

    def make(group: EventGroup) -> Cells:
        each = np.array(group.values(name), np.int64)[group.event_of]
        each[(group.entry > 0) & (each > 0)] = 0
        return Cells(each)

    return make


def _waiting(group: EventGroup) -> Cells:
    pairs = zip(group.values("refs"), group.values("waiting"), strict=True)
    lists = [_within(from_runs(refs), frozenset(from_runs(waiting))) for refs, waiting in pairs]
    group.check_lengths(lengths_of(lists), "refs")
    return Cells([flag for flags in lists for flag in flags])


def _within(values: Sequence[int], members: frozenset[int]) -> list[bool]:
    return [value in members for value in values]


def _each_properties(group: EventGroup) -> Cells:
    if not any(group.values("properties")):
        return Cells([], np.full(group.total, -1))
    cells: list[str | None] = []
    for properties, count in zip(group.values("properties"), group.counts.tolist(), strict=True):
        if properties is not None and len(properties) != count:
            raise UnusualEvent(f"a {group.kind} with another number of properties than of entries")
        cells += [None] * count if properties is None else map(_json, properties)
    return Cells(cells)


def _dropped_refs(group: EventGroup) -> Cells:
    return Cells([from_runs(refs) for refs in group.values("refs")], group.event_of)


def _dropped_topics(group: EventGroup) -> Cells:
    return Cells([topics or None for topics in group.values("topics")], group.event_of)


def _filters(group: EventGroup) -> Cells:
    """Return filters without a QoS."""
    lists = [[(name, None) for name in names] for names in group.values("filters")]
    return Cells(lists, group.event_of)


def _of_property(get: Callable[[MessageProperties], Any]) -> Maker:
    """Return a maker for a property; a block that cannot be read has none."""

    def make(group: EventGroup) -> Cells:
        blocks, where = group.blocks
        properties = [_properties_of(block) for block in blocks]
        return Cells([None if each is None else get(each) for each in properties], where)

    return make


@lru_cache(_KNOWN_BLOCKS)
def _properties_of(block: bytes) -> MessageProperties | None:
    try:
        return decode_message_properties(block)
    except (FoldmqError, ValueError, IndexError):
        return None


_OF_BLOCKS: Final[Mapping[str, Maker]] = {
    "block": lambda group: Cells(*group.blocks),
    "content_type": _of_property(lambda properties: properties.content_type),
    "response_topic": _of_property(lambda properties: properties.response_topic),
    "correlation_data": _of_property(lambda properties: properties.correlation),
    "payload_format": _of_property(lambda properties: properties.payload_format or None),
    "user_properties": _of_property(lambda properties: properties.user or None),
}
_OF_MESSAGES: Final[Mapping[str, Maker]] = {
    **_OF_BLOCKS,
    "topic": lambda group: Cells(*group.topics()),
    "size": lambda group: Cells(group.sizes),
    "expires_at": lambda group: Cells(*group.expiries()),
}
_PIDS: Final[Mapping[str, Maker]] = {"packet_id": _of_runs("pids")}
_WITHOUT_QOS: Final = ("Unsubscribed", "SubscriptionDenied", "DestinationOpened")
_WITH_TOPICS: Final = (
    *("RetainedCleared", "RetainedExpired"),
    *("TopicsKeyed", "KeysSnapshot", "ErasureRequested"),
)
_REFS: Final[Mapping[str, Maker]] = {"ref": _of_runs("refs")}
_OWN: Final[Mapping[str, Mapping[str, Maker]]] = {
    "MessagePublished": {
        **_OF_MESSAGES,
        "packet_id": _of_optional_runs("pids"),
        "properties": _each_properties,
    },
    "MessagesCarried": {**_OF_MESSAGES, **_REFS, "waiting": _waiting},
    "RetainedSnapshot": {**_OF_MESSAGES, **_REFS, "qos": _of_runs("qos")},
    "WillArmed": _OF_BLOCKS,
    "Delivered": {**_PIDS, **_REFS, "queued": _total("queued")},
    "Queued": {
        **_REFS,
        "queued_bytes": _total("size"),
        "expires_at": lambda group: Cells(*group.expiries()),
    },
    "Expired": {**_REFS, "queued_bytes": _total("size")},
    "Assigned": {**_REFS, "queued": _total("queued"), "qos": _of_field("qos")},
    **{kind: {**_PIDS, **_REFS} for kind in ("Released", "InboundReplaced", "Returned")},
    **dict.fromkeys(("Acked", "Received", "Refused", "Completed", "Redelivered"), _PIDS),
    "MessageDropped": {"refs": _dropped_refs, "topics": _dropped_topics},
    "SessionClosed": {"expiry": _of_field("expiry")},
    "Subscribed": {"filters": _of_field("filters")},
    **{kind: {"filters": _filters} for kind in _WITHOUT_QOS},
    "ForwardRefused": _REFS,
    **{kind: {"topics": _of_field("topics")} for kind in _WITH_TOPICS},
}
"""Event type -> the columns that are no field of the events, or have another form."""
_ELSEWHERE: Final = {
    **{kind: {"count"} for kind in MESSAGES},
    **{kind: {"size"} for kind in ("Queued", "Expired")},
    "ReplayReached": {"through"},
}
"""Event type -> its fields that belong to another column, or to ``json`` alone."""


def _kinds(hint: Any) -> frozenset[Any]:
    """Return the types of a field's values, without None."""
    parts = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    return frozenset(get_origin(part) or part for part in parts) - {type(None)}


def _own_fields(kind: type) -> dict[str, frozenset[Any]]:
    """Return the first fields of an event type, those before its version, with their types."""
    hints = get_type_hints(kind)
    names = [field.name for field in fields(kind)]
    return {name: _kinds(hints[name]) for name in names[: names.index("e")]}


_BY_TYPE: Final[Mapping[frozenset[Any], Callable[[str], Maker]]] = {
    **{frozenset({kind}): _of_field for kind in (str, int, bool)},
    frozenset({dict}): _of_object,
}
_FIELDS: Final = {kind.__name__: _own_fields(kind) for kind in get_args(Event)}
MAKERS: Final[Mapping[str, Mapping[str, Maker]]] = {
    kind: {
        **{
            name: _BY_TYPE[types](name)
            for name, types in own.items()
            if name in ENTRIES and types in _BY_TYPE and name not in _ELSEWHERE.get(kind, ())
        },
        **_OWN.get(kind, {}),
    }
    for kind, own in _FIELDS.items()
}
"""Event type -> column -> maker of its cells."""
TEXTS: Final = {
    kind: [name for name, types in own.items() if types == {str}] for kind, own in _FIELDS.items()
}
"""Event type -> its fields of text, which all of its rows repeat."""
