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
from pyarrow import compute

from eventstore.format import from_runs
from spark.columnar import (
    MESSAGES,
    EventGroup,
    indices,
    join_arrays,
    of_numbers,
    of_texts,
    sums_before,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark.columnar import Integers, JsonScan
    from spark.rows.batch_layout import BatchLayout

_TOTALS: Final = {"Delivered": "queued", "Queued": "size", "Expired": "size", "Assigned": "queued"}
_OF_ENTRIES: Final = ("pids", "refs", "reasons")
"""Columns of runs with a value for each entry, if an event has them."""


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
    names = [name for name in ("pids", "refs") if group.has(name)]
    columns = [group.pids()[0] if name == "pids" else group.refs() for name in names]
    events, which = np.unique(group.event_of[chosen], return_inverse=True)
    total = _TOTALS.get(group.kind)
    pieces = [piece for event in events.tolist() for piece in _pieces(raws[event], names, total)]
    pick = indices(2 * which + (group.entry[chosen] > 0))
    parts: list[pa.Array] = []
    for number in range(len(names) + 1):
        parts.append(of_texts(piece[number].encode() for piece in pieces).take(pick))
        if number < len(names):
            parts.append(of_numbers(columns[number][chosen], pa.int64()).cast(pa.string()))
    return compute.binary_join_element_wise(*parts, of_texts([b""])[0])


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


def _pieces(
    raw: dict[str, Any], names: list[str], total: str | None
) -> tuple[list[str], list[str]]:
    """Return the JSON of an event, cut where the numbers of one entry are inserted.

    Once for its first entry, which has the total, and once for all others.
    """
    one: dict[str, Any] = {name: [0] if name in names else raw[name] for name in raw}
    if [name for name in raw if name in names] != names:  # not as foldmq writes it
        one = {name: one[name] for name in (*(one.keys() - set(names)), *names)}
    first = _split(one, names)
    if total is None or raw[total] <= 0:
        return first, first
    return first, _split({**one, total: 0}, names)


def _split(one: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Cut JSON at the single number in each of some arrays, which follow in this order."""
    pieces: list[str] = []
    rest = orjson.dumps(one).decode()
    for name in names:  # in a string the quotes of such a name would be escaped
        piece, mark, rest = rest.partition(f'"{name}":[0')
        pieces.append(piece + mark[:-1])
    return [*pieces, rest]


def _messages(group: EventGroup, raws: _Raws, chosen: Integers) -> pa.Array:
    """Return the entries of events that contain messages."""
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
