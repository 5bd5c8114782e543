"""What the events of each type put into the columns of rows=entries.

A *cell maker* gives the values that the events of one type have in one column, as one Arrow array
for each event or each entry, never row by row where events share a value. Most makers follow from
the fields of the event types; the rest, about messages, stands here.
"""

from __future__ import annotations

from dataclasses import fields
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
import pyarrow as pa

from eventstore.events import Event
from spark.columns import ENTRIES
from spark.groups import COUNTED_BY, MESSAGES, Group
from spark.runs import Integers, Misfit, before
from spark.singles import json_array

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    import msgspec


class Cells(NamedTuple):
    """The cells of one type of event in one column."""

    values: pa.Array
    pick: Integers | None
    """For each entry, which of the values it has (-1: null); None: one each, in order."""


Maker: TypeAlias = "Callable[[Group], Cells]"


def _array(values: Any, column: str) -> pa.Array:
    try:
        return pa.array(values, ENTRIES[column])
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError):
        raise Misfit(f"{column} with a value that is too large") from None


def of_events(group: Group, values: pa.Array) -> Cells:
    """Return cells of which each event has one for all of its entries."""
    return Cells(values, None if group.single else group.event_of)


def _simple(name: str) -> Maker:
    def make(group: Group) -> Cells:
        return of_events(group, _array(group.field(name), name))

    return make


def _json(name: str) -> Maker:
    def make(group: Group) -> Cells:
        return of_events(group, json_array([_object(one) for one in group.field(name)]))

    return make


def _object(text: msgspec.Raw) -> msgspec.Raw | None:
    """Return the JSON of an object, None for null; raise Misfit for anything else."""
    first = bytes(memoryview(text)[:1])
    if first not in (b"{", b"n"):
        raise Misfit("a field that is no object")
    return text if first == b"{" else None


def _total(field: str, column: str) -> Maker:
    """Make cells of a sum over an event: at its first entry, 0 at the others."""

    def make(group: Group) -> Cells:
        totals = group.integers(field)
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
    return Cells(_array(group.for_each("qos"), "qos"), None)


def _waiting(group: Group) -> Cells:
    return Cells(_array(group.waits(), "waiting"), None)


def _each_properties(group: Group) -> Cells:
    lists = group.field("properties")
    if not any(lists):
        return Cells(pa.nulls(1, pa.string()), np.zeros(group.total, np.int64))
    texts: list[msgspec.Raw | None] = []
    for properties, count in zip(lists, group.counts.tolist(), strict=True):
        if properties is not None and len(properties) != count:
            raise Misfit("MessagePublished with another number of properties than of messages")
        texts += [None] * count if properties is None else map(_object, properties)
    return Cells(json_array(texts), None)


def _dropped_refs(group: Group) -> Cells:
    counts, values = group.runs("refs")
    offsets = np.concatenate((before(counts), [len(values)])).astype(np.int32)
    array = pa.ListArray.from_arrays(pa.array(offsets), pa.array(values), type=ENTRIES["refs"])
    return of_events(group, array)


def _granted(group: Group) -> Cells:
    lists = group.field("filters")
    names = [name for pairs in lists for name, _ in pairs]
    granted = [qos for pairs in lists for _, qos in pairs]
    return _filters(group, lists, names, _array(granted, "qos"))


def _taken(group: Group) -> Cells:
    lists = group.field("filters")
    names = [name for names in lists for name in names]
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
    return of_events(group, _array(group.field("topics"), "topics"))


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
    several = isinstance(hint, UnionType)
    kinds = {one for one in (get_args(hint) if several else (hint,)) if one is not type(None)}
    if kinds <= {str} or kinds <= {int} or kinds <= {bool}:
        return _simple(name)
    if all(get_origin(kind) is dict for kind in kinds):
        return _json(name)
    return None


MAKERS: Final[Mapping[str, Mapping[str, Maker]]] = _makers()
"""Event type -> column -> what makes its cells."""
