"""Values of the columns of rows=entries for events of several sessions.

They are those of the events of single sessions for which these stand.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from spark.tables.arrays import (
    indices,
    joined_texts,
    number_texts,
    of_flags,
    of_numbers,
    of_texts,
)
from spark.tables.arrow_types import ENTRIES
from spark.tables.entry_columns import EntryColumn, narrowed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import TypeAlias

    import pyarrow as pa

    from spark.tables.arrays import Part
    from spark.tables.integer_columns import Integers
    from spark.tables.turn_groups import TurnGroup

    Maker: TypeAlias = Callable[[TurnGroup], EntryColumn]


def _text(name: str) -> Maker:
    return lambda group: EntryColumn(*group.text(name))


def _no_flag(group: TurnGroup) -> EntryColumn:
    return EntryColumn(of_flags(np.zeros(1, np.bool_)), np.zeros(group.total, np.int64))


def _direct(group: TurnGroup) -> EntryColumn:
    """Return the value of deliveries that bypassed the queue."""
    values = of_numbers(np.full(1, -1), ENTRIES["queued"])
    return EntryColumn(values, np.zeros(group.total, np.int64))


def _packet_ids(group: TurnGroup) -> EntryColumn:
    return EntryColumn(narrowed(group.pids(), "packet_id"), None)


def _refs(group: TurnGroup) -> EntryColumn:
    return EntryColumn(narrowed(group.refs(), "ref"), None)


def _sizes(group: TurnGroup) -> EntryColumn:
    return EntryColumn(narrowed(group.sizes, "size"), None)


def _qos(group: TurnGroup) -> EntryColumn:
    return EntryColumn(narrowed(group.qos(), "qos"), None)


_ACKED: Final[Mapping[str, Maker]] = {"session": _text("session"), "packet_id": _packet_ids}
TURN_MAKERS: Final[Mapping[str, Mapping[str, Maker]]] = {
    "MessagePublished": {
        "session": _text("session"),
        "topic": _text("topic"),
        "qos": _qos,
        "packet_id": _packet_ids,
        "size": _sizes,
        "retain": _no_flag,
        "will": _no_flag,
    },
    "Delivered": {
        "session": _text("session"),
        "filter": _text("filter"),
        "qos": _qos,
        "packet_id": _packet_ids,
        "ref": _refs,
        "retain": _no_flag,
        "queued": _direct,
    },
    "Acked": _ACKED,
    "Received": _ACKED,
    "Completed": _ACKED,
    "Released": {**_ACKED, "ref": _refs},
}
"""Type of event for which others stand -> column -> maker of its cells."""


def turn_json(group: TurnGroup, first: int, last: int) -> pa.Array:
    """Return a range of entries of a group, each as an event of its own, in JSON."""

    def text(column: str) -> pa.Array:
        values, which = group.text(column, raw=True)
        return values.take(indices(which[first:last]))

    def numbers(values: Integers) -> Part:
        return number_texts(values[first:last])

    parts: list[Part] = [b'{"session":"', text("session")]
    pids = numbers(group.pids())
    if group.kind == "MessagePublished":
        parts += [b'","qos":', numbers(group.qos()), b',"retain":false,"topics":["', text("topic")]
        parts += [b'"],"which":[],"pids":[', pids, b'],"sizes":', numbers(group.sizes)]
        parts += [b',"at":', numbers(group.starts), b',"count":1,"will":false,"properties":null']
        parts += _blocks(group, first, last)
    elif group.kind == "Delivered":
        parts += [b'","filter":"', text("filter"), b'","qos":', numbers(group.qos())]
        parts += [b',"pids":[', pids, b'],"refs":[', numbers(group.refs())]
        parts += [b'],"retain":false,"queued":-1']
    elif group.kind == "Released":
        parts += [b'","pids":[', pids, b'],"refs":[', numbers(group.refs()), b"]"]
    else:
        parts += [b'","pids":[', pids, b"]", *_reasons(group, first, last)]
    parts.append(f',"e":"{group.kind}","v":1}}'.encode())
    return joined_texts(last - first, *parts)


def _blocks(group: TurnGroup, first: int, last: int) -> list[Part]:
    """Return the fields that refer to the property block of each message."""
    found = group.blocks()
    if found is None:
        return []
    each = zip(found.sizes.tolist(), found.begins.tolist(), strict=True)
    written = [b',"blocks":[%d],"blocks_at":[%d]' % one for one in each]
    return [of_texts([b"", *written]).take(indices(found.which[first:last] + 1))]


def _reasons(group: TurnGroup, first: int, last: int) -> list[Part]:
    """Return the reason code of each entry, where one in its event is not 0."""
    found = group.reasons()
    if found is None:
        return []
    values, some = found
    distinct, which = np.unique(values[first:last], return_inverse=True)
    written = [b',"reasons":[%d]' % value for value in distinct.tolist()]
    return [of_texts([b"", *written]).take(indices(np.where(some[first:last], which + 1, 0)))]
