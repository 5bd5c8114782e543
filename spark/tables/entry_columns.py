"""Values of the columns of rows=entries for each type of event.

A *cell maker* returns the values of one column for the events of one type, as one Arrow array for
all events or all entries, never row by row where events share a value. Most makers follow from the
fields of the event types; this module contains the others, about messages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa

from spark.tables.arrays import of_flags, of_lists, of_numbers, of_texts
from spark.tables.arrow_types import ENTRIES
from spark.tables.event_fields import SHAPES
from spark.tables.event_groups import COUNTED_BY, MESSAGES, EventGroup
from spark.tables.integer_columns import Integers, UnusualEvent, integers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from spark.tables.integer_text import Flags


class EntryColumn(NamedTuple):
    """The cells of one type of event in one column."""

    values: pa.Array
    pick: Integers | None
    """For each entry, the index of its value (-1: null); None: one value each, in order."""


Maker: TypeAlias = "Callable[[EventGroup], EntryColumn | None]"
"""Returns the cells of a group in a column; None: all are null."""


def narrowed(values: Integers, column: str, valid: Flags | None = None) -> pa.Array:
    """Return integers as an array of a column's type; raise UnusualEvent for too large ones."""
    if ENTRIES[column] == pa.int64():
        return of_numbers(values, pa.int64(), valid)
    narrow = values.astype(np.int32)
    if not np.array_equal(narrow, values):
        raise UnusualEvent(f"{column} with a value that is too large")
    return of_numbers(narrow, ENTRIES[column], valid)


def of_events(group: EventGroup, values: pa.Array) -> EntryColumn:
    """Return cells with one value of each event for all of its entries."""
    return EntryColumn(values, None if group.single else group.event_of)


def _of_text(name: str) -> Maker:
    return lambda group: of_events(group, group.strings(name))


def _of_integers(name: str) -> Maker:
    def make(group: EventGroup) -> EntryColumn:
        values, valid = group.known_integers(name)
        return of_events(group, narrowed(values, name, valid))

    return make


def _of_flags(name: str) -> Maker:
    return lambda group: of_events(group, of_flags(group.flags(name)))


def _of_json(name: str) -> Maker:
    return lambda group: of_events(group, group.objects(name))


def _total(field: str, column: str) -> Maker:
    """Return a maker for a sum over an event: at its first entry, 0 at the others."""

    def make(group: EventGroup) -> EntryColumn:
        totals = group.integers(field)
        each = totals[group.event_of]
        each[(group.entry > 0) & (each > 0)] = 0
        return EntryColumn(narrowed(each, column), None)

    return make


def _packet_ids(group: EventGroup) -> EntryColumn:
    values, pick = group.pids()
    return EntryColumn(narrowed(values, "packet_id"), pick)


def _refs(group: EventGroup) -> EntryColumn:
    return EntryColumn(narrowed(group.refs(), "ref"), None)


def _sizes(group: EventGroup) -> EntryColumn:
    return EntryColumn(narrowed(group.sizes, "size"), None)


def _topics(group: EventGroup) -> EntryColumn:
    return EntryColumn(*group.topics())


def _each_qos(group: EventGroup) -> EntryColumn:
    return EntryColumn(narrowed(group.for_each("qos"), "qos"), None)


def _waiting(group: EventGroup) -> EntryColumn:
    return EntryColumn(of_flags(group.waits()), None)


def _each_properties(group: EventGroup) -> EntryColumn | None:
    found = group.properties()
    if found is None:
        return None
    valid = np.array([one is not None for one in found], np.bool_)
    return EntryColumn(of_texts([b"" if one is None else one for one in found], valid), None)


def _dropped_refs(group: EventGroup) -> EntryColumn:
    counts, values = group.runs("refs")
    kind = ENTRIES["refs"]
    return of_events(group, of_lists(counts, of_numbers(values, pa.int64()), kind))


def _granted(group: EventGroup) -> EntryColumn:
    lists = group.granted()
    names = of_texts(name.encode() for pairs in lists for name, _ in pairs)
    granted = integers([qos for pairs in lists for _, qos in pairs])
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    return _filters(group, lengths, names, narrowed(granted, "qos"))


def _taken(group: EventGroup) -> EntryColumn:
    lengths, names = group.string_lists("filters")
    return _filters(group, lengths, names, pa.nulls(len(names), ENTRIES["qos"]))


def _filters(group: EventGroup, lengths: Integers, names: pa.Array, qos: pa.Array) -> EntryColumn:
    kind = ENTRIES["filters"]
    pairs = pa.Array.from_buffers(kind.value_type, len(names), [None], children=[names, qos])
    return of_events(group, of_lists(lengths, pairs, kind))


def _changed_expiry(group: EventGroup) -> EntryColumn:
    """Return the session expiry in SessionClosed events; null where they have none."""
    values, valid = np.zeros(len(group), np.int64), np.zeros(len(group), np.bool_)
    for place, raw in group.added:
        if "expiry" in raw:
            values[place], valid[place] = raw["expiry"], True
    return of_events(group, narrowed(values, "expiry", valid))


def _assigned_qos(group: EventGroup) -> EntryColumn:
    """Return the QoS in Assigned events; 0 where they have none."""
    values = np.zeros(len(group), np.int64)
    for place, raw in group.added:
        values[place] = raw.get("qos", 0)
    return of_events(group, narrowed(values, "qos"))


def _cleared(group: EventGroup) -> EntryColumn:
    return of_events(group, of_lists(*group.string_lists("topics"), ENTRIES["topics"]))


def _dropped_topics(group: EventGroup) -> EntryColumn:
    """Return the topics that MessageDropped events name; null where they name none."""
    lists: list[list[str]] = [[] for _ in range(len(group))]
    for place, raw in group.added:
        lists[place] = raw.get("topics", [])
    lengths = np.fromiter(map(len, lists), np.int64, len(lists))
    names = of_texts(name.encode() for some in lists for name in some)
    return of_events(group, of_lists(lengths, names, ENTRIES["topics"], lengths > 0))


_OWN: Final[Mapping[tuple[str, str], Maker]] = {
    **{(kind, "topic"): _topics for kind in MESSAGES},
    **{(kind, "size"): _sizes for kind in MESSAGES},
    **{
        (kind, "packet_id"): _packet_ids
        for kind in (*COUNTED_BY, "MessagePublished")
        if "pids" in SHAPES[kind].fields
    },
    **{
        (kind, "ref"): _refs
        for kind in (*COUNTED_BY, "RetainedSnapshot", "MessagesCarried")
        if "refs" in SHAPES[kind].fields
    },
    ("RetainedSnapshot", "qos"): _each_qos,
    ("MessagesCarried", "waiting"): _waiting,
    ("MessagePublished", "properties"): _each_properties,
    ("Delivered", "queued"): _total("queued", "queued"),
    ("Assigned", "queued"): _total("queued", "queued"),
    ("Assigned", "qos"): _assigned_qos,
    ("Queued", "queued_bytes"): _total("size", "queued_bytes"),
    ("Expired", "queued_bytes"): _total("size", "queued_bytes"),
    ("MessageDropped", "refs"): _dropped_refs,
    ("MessageDropped", "topics"): _dropped_topics,
    ("SessionClosed", "expiry"): _changed_expiry,
    ("Subscribed", "filters"): _granted,
    ("Unsubscribed", "filters"): _taken,
    ("SubscriptionDenied", "filters"): _taken,
    ("RetainedCleared", "topics"): _cleared,
    ("RetainedExpired", "topics"): _cleared,
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
        ("Expired", "size"),
        ("WillArmed", "at"),
    }
)
"""Fields that map to columns of another name or shape."""


def _makers() -> dict[str, dict[str, Maker]]:
    """Return the makers of each event type: from its own fields, and the above."""
    makers: dict[str, dict[str, Maker]] = {}
    for kind, shape in SHAPES.items():
        own = {column: maker for (name, column), maker in _OWN.items() if name == kind}
        for name, field in shape.fields.items():
            if name in own or name not in ENTRIES or (kind, name) in _ELSEWHERE:
                continue
            if (maker := _BY_KIND.get(field.kinds - {None})) is not None:
                own[name] = maker(name)
        makers[kind] = own
    return makers


_BY_KIND: Final[Mapping[frozenset[type], Callable[[str], Maker]]] = {
    frozenset({str}): _of_text,
    frozenset({int}): _of_integers,
    frozenset({bool}): _of_flags,
    frozenset({dict}): _of_json,
}
"""The types of a field's values -> function that creates the maker of its column."""
MAKERS: Final[Mapping[str, Mapping[str, Maker]]] = _makers()
"""Event type -> column -> maker of its cells."""
