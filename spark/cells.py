"""What the events of each type put into the columns of rows=entries.

A *cell maker* gives the values that the events of one type have in one column, as one Arrow array
for each event or each entry, never row by row where events share a value. Most makers follow from
the fields of the event types; the rest, about messages, stands here.
"""

from __future__ import annotations

from dataclasses import fields
from types import UnionType
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias, get_args, get_type_hints

import numpy as np
import orjson
import pyarrow as pa

from eventstore.events import Event
from spark.columns import ENTRIES
from spark.groups import BOOL, COUNTED_BY, DICT, INT, LIST, MESSAGES, NONE, STR, Group
from spark.runs import Integers, Misfit, before
from spark.singles import json_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


class Cells(NamedTuple):
    """The cells of one type of event in one column."""

    values: pa.Array
    pick: Integers | None
    """For each entry, which of the values it has (-1: null); None: one each, in order."""


Maker: TypeAlias = "Callable[[Group], Cells]"

_SCALARS: Final[Mapping[type, frozenset[type]]] = {str: STR, int: INT, bool: BOOL}


def _array(values: Any, column: str) -> pa.Array:
    try:
        return pa.array(values, ENTRIES[column])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise Misfit(f"{column} with a value that is too large") from None


def of_events(group: Group, values: pa.Array) -> Cells:
    """Return cells of which each event has one for all of its entries."""
    return Cells(values, None if group.single else group.event_of)


def _simple(field: str, kinds: frozenset[type], column: str) -> Maker:
    if kinds >= INT:  # Arrow takes 1.0 for an integer

        def make(group: Group) -> Cells:
            return of_events(group, _array(group.field(field, kinds), column))

    else:

        def make(group: Group) -> Cells:
            array = _array(group.raw_field(field), column)
            if array.null_count and not kinds >= NONE:
                raise Misfit(f"{group.kind} without {field}")
            return of_events(group, array)

    return make


def _json(field: str, kinds: frozenset[type]) -> Maker:
    def make(group: Group) -> Cells:
        values = group.field(field, kinds)
        texts = [None if value is None else orjson.dumps(value) for value in values]
        return of_events(group, json_array(texts))

    return make


def _total(field: str, column: str) -> Maker:
    """Make cells of a sum over an event: at its first entry, 0 at the others."""

    def make(group: Group) -> Cells:
        totals = np.array(group.field(field, INT), np.int64)
        each = totals[group.event_of]
        each[(group.entry > 0) & (each > 0)] = 0
        return Cells(_array(each, column), None)

    return make


def _packet_ids(group: Group) -> Cells:
    values, pick = group.pids()
    return Cells(_array(values, "packet_id"), pick)


def _refs(group: Group) -> Cells:
    return Cells(_array(group.refs(), "ref"), None)


def _sizes(group: Group) -> Cells:
    return Cells(_array(group.sizes, "size"), None)


def _topics(group: Group) -> Cells:
    topics, pick = group.topics()
    return Cells(_array(topics, "topic"), pick)


def _each_qos(group: Group) -> Cells:
    values = group.for_each("qos")
    if not INT.issuperset(map(type, values)):
        raise Misfit("a QoS that is none")
    return Cells(_array(values, "qos"), None)


def _waiting(group: Group) -> Cells:
    _, values = group.runs("waiting")
    waiting = np.isin(group.refs(), values) if len(values) else np.zeros(group.total, np.bool_)
    return Cells(_array(waiting, "waiting"), None)


def _each_properties(group: Group) -> Cells:
    lists = group.field("properties", LIST | NONE)
    if NONE.issuperset(map(type, lists)):
        return Cells(pa.nulls(1, pa.string()), np.zeros(group.total, np.int64))
    texts: list[bytes | None] = []
    for properties, count in zip(lists, group.counts.tolist(), strict=True):
        each = properties if properties is not None else [None] * count
        if len(each) != count:
            raise Misfit("another number of properties than of messages")
        texts += [None if one is None else orjson.dumps(one) for one in each]
    return Cells(json_array(texts), None)


def _dropped_refs(group: Group) -> Cells:
    counts, values = group.runs("refs")
    offsets = np.concatenate((before(counts), [len(values)])).astype(np.int32)
    array = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=ENTRIES["refs"])
    return of_events(group, array)


def _granted(group: Group) -> Cells:
    lists = group.field("filters", LIST)
    pairs = [pair for pairs in lists for pair in pairs]
    if not LIST.issuperset(map(type, pairs)) or not {2}.issuperset(map(len, pairs)):
        raise Misfit("Subscribed with filters that are none")
    names = [name for name, _ in pairs]
    if not STR.issuperset(map(type, names)):
        raise Misfit("Subscribed with filters that are none")
    granted = [qos for _, qos in pairs]
    if not INT.issuperset(map(type, granted)):
        raise Misfit("Subscribed with a QoS that is none")
    return _filters(group, lists, names, _array(granted, "qos"))


def _taken(group: Group) -> Cells:
    lists = group.field("filters", LIST)
    names = [name for names in lists for name in names]
    if not STR.issuperset(map(type, names)):
        raise Misfit("Unsubscribed with filters that are none")
    return _filters(group, lists, names, pa.nulls(len(names), ENTRIES["qos"]))


def _filters(group: Group, lists: list[Any], names: list[str], qos: pa.Array) -> Cells:
    kind = ENTRIES["filters"]
    pairs = pa.StructArray.from_arrays(
        [pa.array(names, pa.string()), qos], fields=list(kind.value_type)
    )
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    offsets = np.concatenate((before(lengths), [len(names)])).astype(np.int32)
    return of_events(group, pa.ListArray.from_arrays(pa.array(offsets), pairs, type=kind))


def _cleared(group: Group) -> Cells:
    topics = group.field("topics", LIST)
    for some in topics:
        if not STR.issuperset(map(type, some)):
            raise Misfit("RetainedCleared with topics that are none")
    return of_events(group, _array(topics, "topics"))


_OWN: Final[Mapping[tuple[str, str], Maker]] = {
    **{(kind, "topic"): _topics for kind in MESSAGES},
    **{(kind, "size"): _sizes for kind in MESSAGES},
    **{
        (kind, "packet_id"): _packet_ids
        for kind in (*(set(COUNTED_BY) - {"Queued"}), "MessagePublished")
    },
    **{
        (kind, "ref"): _refs
        for kind in ("Delivered", "Queued", "Released", "RetainedSnapshot", "MessagesCarried")
    },
    ("RetainedSnapshot", "qos"): _each_qos,
    ("MessagesCarried", "waiting"): _waiting,
    ("MessagePublished", "properties"): _each_properties,
    ("Delivered", "queued"): _total("queued", "queued"),
    ("Queued", "queued_bytes"): _total("size", "queued_bytes"),
    ("MessageDropped", "refs"): _dropped_refs,
    ("Subscribed", "filters"): _granted,
    ("Unsubscribed", "filters"): _taken,
    ("RetainedCleared", "topics"): _cleared,
}
_ELSEWHERE: Final = frozenset(
    {
        *(
            (kind, name)
            for kind in MESSAGES
            for name in ("which", "sizes", "at", "count", "topics")
        ),
        *((kind, name) for kind in COUNTED_BY for name in ("pids", "refs")),
        ("MessagePublished", "pids"),
        ("RetainedSnapshot", "refs"),
        ("MessagesCarried", "refs"),
        ("Queued", "size"),
        ("WillArmed", "at"),
    }
)
"""Fields that are in columns of another name or shape."""


def _makers() -> dict[str, dict[str, Maker]]:
    """Return for each event type what makes its columns: from its own fields, and the above."""
    makers: dict[str, dict[str, Maker]] = {}
    for kind in get_args(Event):
        own = {column: maker for (name, column), maker in _OWN.items() if name == kind.__name__}
        hints = get_type_hints(kind)
        for field in fields(kind):
            name = field.name
            if name in ("e", "v") or name in own or (kind.__name__, name) in _ELSEWHERE:
                continue
            if (maker := _maker_of(name, hints[name])) is not None:
                own[name] = maker
        makers[kind.__name__] = own
    return makers


def _maker_of(name: str, hint: Any) -> Maker | None:
    """Return what makes a column of a field with such a type; None: it has none of its own."""
    if name not in ENTRIES:
        return None
    nullable = isinstance(hint, UnionType) and type(None) in get_args(hint)
    kind = get_args(hint)[0] if nullable else hint
    null: frozenset[type] = NONE if nullable else frozenset()
    if kind in _SCALARS:
        return _simple(name, _SCALARS[kind] | null, name)
    if getattr(kind, "__origin__", None) is dict:
        return _json(name, DICT | null)
    return None


MAKERS: Final[Mapping[str, Mapping[str, Maker]]] = _makers()
"""Event type -> column -> what makes its cells."""
