"""Splits an event about many messages into events about one message each, in JSON.

Folding these one after the other has the same result as folding the event: totals (the bytes that
entered or left a queue) are in the first one and are 0 in the others.
"""

from __future__ import annotations

from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa

from eventstore.format.positions import from_runs
from spark.tables.arrays import (
    indices,
    join_arrays,
    joined_texts,
    number_texts,
    of_numbers,
    of_texts,
)
from spark.tables.event_fields import SHAPES
from spark.tables.event_groups import MESSAGES, EventGroup
from spark.tables.integer_columns import sums_before

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from spark.tables.arrays import Part
    from spark.tables.batch_layout import BatchLayout
    from spark.tables.integer_columns import Integers
    from spark.tables.json_scan import JsonScan

_TOTALS: Final = {"Delivered": "queued", "Queued": "size", "Expired": "size", "Assigned": "queued"}
_OF_ENTRIES: Final = ("pids", "refs", "reasons")
"""Columns of runs with a value for each entry, if an event has them."""


_WITH_BLOCKS: Final = {*SHAPES["MessagePublished"].fields, "blocks", "block_of", "e", "v"}
"""Fields of an event whose messages have properties."""


def as_json(layout: BatchLayout, group: EventGroup, first: int, last: int) -> pa.Array:
    """Return a range of entries of the group, each as an event of its own.

    Raises UnusualEvent as the group does.
    """
    scan = layout.scan
    events = group.event_of[first:last]
    shared = group.counts[events] > 1
    several, alone = np.flatnonzero(shared), np.flatnonzero(~shared)
    make = _messages if group.kind in MESSAGES else _of_runs
    made = make(group, _Raws(scan, group.numbers), first + several)
    if not len(alone):
        return made
    where = np.empty(last - first, np.int64)
    where[several] = np.arange(len(several))
    where[alone] = len(several) + np.arange(len(alone))
    return join_arrays([made, scan.events(group.numbers[events[alone]])]).take(indices(where))


class _Raws(dict[int, dict[str, Any]]):
    """The events of a group as JSON objects, each parsed on first access."""

    def __init__(self, scan: JsonScan, numbers: Integers) -> None:
        super().__init__()
        self._scan = scan
        self._numbers = numbers

    def __missing__(self, event: int) -> dict[str, Any]:
        self[event] = raw = orjson.loads(self._scan.event(int(self._numbers[event])))
        return raw  # type: ignore[no-any-return]


def _of_runs(group: EventGroup, raws: _Raws, chosen: Integers) -> pa.Array:
    """Return entries, each with its own integers in place of the runs of its event."""
    if group.kind == "Refused" or group.has_added():
        return _one_by_one(group, raws, chosen)
    own: dict[str, tuple[Part, ...]] = {}
    if group.has("pids"):
        own["pids"] = (b"[", number_texts(group.pids()[0][chosen]), b"]")
    if group.has("refs"):
        own["refs"] = (b"[", number_texts(group.refs()[chosen]), b"]")
    if (total := _TOTALS.get(group.kind)) is not None:
        each = group.integers(total)[group.event_of[chosen]]
        each[(group.entry[chosen] > 0) & (each > 0)] = 0
        own[total] = (number_texts(each),)
    return _spliced(group, chosen, own)


def _spliced(
    group: EventGroup,
    chosen: Integers,
    own: Mapping[str, Sequence[Part]],
    tail: Sequence[Part] = (),
) -> pa.Array:
    """Return the events of some entries, with values of their own for some fields.

    ``tail``: the end of each, behind the last of these fields; if empty, that of its event.
    """
    events = group.event_of[chosen]
    changes = np.flatnonzero(np.diff(events, prepend=-1))
    which = indices(np.cumsum(np.diff(events, prepend=-1) > 0) - 1)
    shown = events[changes]
    parts: list[Part] = []
    at = group.bounds[0][shown]
    for name in sorted(own, key=group.number_of):
        begins, ends = group.span(name)
        parts += [group.raw(at, begins[shown]).take(which), *own[name]]
        at = ends[shown]
    parts += tail or [group.raw(at, group.bounds[1][shown]).take(which)]
    return joined_texts(len(chosen), *parts)


def _published(group: EventGroup, chosen: Integers) -> pa.Array | None:
    """Return messages of a session, each as an event of its own; None: some are unusual."""
    if group.properties() is not None or (blocks := _blocks(group, chosen)) is None:
        return None
    topics, pick = group.topics(raw=True)
    own: dict[str, tuple[Part, ...]] = {
        "topics": (b'["', topics.take(indices(chosen if pick is None else pick[chosen])), b'"]'),
        "which": (b"[]",),
        "pids": (b"[", _pid_texts(group, chosen), b"]"),
        "sizes": (number_texts(group.sizes[chosen]),),
        "at": (number_texts(group.starts[chosen]),),
        "count": (b"1",),
        "properties": (b"null",),
    }
    return _spliced(group, chosen, own, [*blocks, SHAPES[group.kind].tail])


def _pid_texts(group: EventGroup, chosen: Integers) -> Part:
    """Return the packet identifier of each message, empty where it has none."""
    values, which = group.pids()
    if which is None:
        return number_texts(values[chosen])
    texts = of_numbers(values, pa.int64()).cast(pa.string())
    return join_arrays([of_texts([b""]), texts]).take(indices(which[chosen] + 1))


def _blocks(group: EventGroup, chosen: Integers) -> list[Part] | None:
    """Return the fields that refer to the property block of each message.

    None: some events have other fields beyond the usual ones.
    """
    if not group.has_added():
        return []
    which = np.zeros(group.total, np.int64)
    texts = [b""]
    firsts = sums_before(group.counts)
    for place, raw in group.added:
        if not raw.get("blocks") or not raw.keys() <= _WITH_BLOCKS:
            return None
        first, count = int(firsts[place]), int(group.counts[place])
        numbers = np.array(raw.get("block_of") or [1] * count)
        which[first : first + count] = np.where(numbers > 0, numbers + len(texts) - 1, 0)
        begins = accumulate(raw["blocks"], initial=raw["at"] - sum(raw["blocks"]))
        texts += [
            b',"blocks":[%d],"blocks_at":[%d]' % each
            for each in zip(raw["blocks"], begins, strict=False)
        ]
    return [of_texts(texts).take(indices(which[chosen]))]


def _one_by_one(group: EventGroup, raws: _Raws, chosen: Integers) -> pa.Array:
    """Return the entries of events with unusual columns."""
    spread: dict[int, dict[str, list[int]]] = {}
    total = _TOTALS.get(group.kind)
    found: list[bytes] = []
    places = zip(group.event_of[chosen].tolist(), group.entry[chosen].tolist(), strict=True)
    for event, entry in places:
        raw = raws[event]
        if event not in spread:
            spread[event] = {name: from_runs(raw[name]) for name in _OF_ENTRIES if name in raw}
        one = {**raw, **{name: values[entry : entry + 1] for name, values in spread[event].items()}}
        if entry and total is not None and one[total] > 0:
            one[total] = 0
        if one.get("behind", -1) >= 0:
            one["behind"] += entry
        _set_expiry(one, entry)
        found.append(orjson.dumps(one))
    return of_texts(found)


def _set_expiry(one: dict[str, Any], entry: int) -> None:
    """Keep only the expiry of one message of an event."""
    expires = one.get("expires", 0)
    if isinstance(expires, list):
        one["expires"] = from_runs(expires)[entry]


def _messages(group: EventGroup, raws: _Raws, chosen: Integers) -> pa.Array:
    """Return the entries of events that contain messages."""
    usual = _published(group, chosen) if group.kind == "MessagePublished" else None
    if usual is not None:
        return usual
    found_topics, pick = group.topics()
    topics = found_topics.to_pylist()
    each: dict[str, Sequence[Any]] = {}
    if group.kind == "MessagePublished":
        values, which = group.pids()
        pids = values.tolist()
        of = chosen if which is None else which[chosen]
        each["pids"] = [[pids[at]] if at >= 0 else [] for at in of.tolist()]
        each["properties"] = _properties(group, raws, chosen)
    else:
        refs: list[int] = group.refs()[chosen].tolist()
        each["refs"] = [[ref] for ref in refs]
        if group.kind == "MessagesCarried":
            waits = group.waits()[chosen].tolist()
            each["waiting"] = [[ref] if wait else [] for ref, wait in zip(refs, waits, strict=True)]
        else:
            each["qos"] = [[qos] for qos in group.for_each("qos")[chosen].tolist()]
    where = chosen if pick is None else pick[chosen]
    each["topics"] = [[topics[at]] for at in where.tolist()]
    each["sizes"] = group.sizes[chosen].tolist()
    each["at"] = group.starts[chosen].tolist()
    names = list(each)
    found: list[bytes] = []
    firsts: list[int] = sums_before(group.counts).tolist()
    columns = zip(chosen.tolist(), group.event_of[chosen].tolist(), *each.values(), strict=True)
    for number, event, *parts in columns:
        one = {**raws[event], "count": 1}
        if "which" in one:
            one["which"] = []
        one.update(zip(names, parts, strict=True))
        if "blocks" in one:
            entry = number - firsts[event]
            _set_block(one, raws[event], entry)
            _set_expiry(one, entry)
        found.append(orjson.dumps(one))
    return of_texts(found)


def _block_of(raw: dict[str, Any], entry: int) -> dict[str, list[int]]:
    """Return the fields that refer to the property block of one message of an event."""
    sizes, numbers = raw["blocks"], raw.get("block_of")
    number = numbers[entry] if numbers else 1
    if not number:
        return {"blocks": [], "block_of": [], "blocks_at": []}
    begins = raw.get("blocks_at") or [*accumulate(sizes, initial=raw["at"] - sum(sizes))]
    return {"blocks": [sizes[number - 1]], "block_of": [], "blocks_at": [begins[number - 1]]}


def _set_block(one: dict[str, Any], raw: dict[str, Any], entry: int) -> None:
    """Keep only the block of one message of an event; its type and version stay last."""
    for name, values in _block_of(raw, entry).items():
        one.pop(name, None)
        if values:
            one[name] = values
    one["e"], one["v"] = one.pop("e"), one.pop("v")


def _properties(group: EventGroup, raws: _Raws, chosen: Integers) -> list[Any]:
    """Return the properties of each message, in a list of their own."""
    group.properties()  # as many as there are messages
    places = zip(group.event_of[chosen].tolist(), group.entry[chosen].tolist(), strict=True)
    return [
        None if (each := raws[event].get("properties")) is None else [each[entry]]
        for event, entry in places
    ]
