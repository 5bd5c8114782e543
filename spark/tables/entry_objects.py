"""Splits an event about many messages into events about one message each.

Folding these one after the other has the same result as folding the event: totals (the bytes that
entered or left a queue) are in the first one and are 0 in the others.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

from eventstore.format.event_json import field_values
from eventstore.format.positions import from_runs
from eventstore.format.records import payload_bounds
from eventstore.format.stored_properties import block_bounds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from eventstore.format.event_parsing import Event

_TOTALS: Final = {"Delivered": "queued", "Queued": "size", "Expired": "size", "Assigned": "queued"}
_RUNS: Final = ("pids", "refs", "reasons")
"""Columns of runs with a value for each entry, if an event has them."""
_BLOCKS: Final = ("blocks", "block_of", "blocks_at")


def entry_objects(event: Event, count: int) -> Iterator[dict[str, Any]]:
    """Yield the JSON object of each entry of an event, as an event of its own.

    Each is valid until the next one is taken.
    """
    entry = dict(field_values(event))
    if count == 1:
        yield entry
        return
    expires, behind = entry.get("expires"), entry.get("behind", -1)
    columns: dict[str, list[Any]] = {
        name: [[value] for value in from_runs(entry[name])] for name in _RUNS if entry.get(name)
    }
    if isinstance(expires, list):
        columns["expires"] = from_runs(expires)
    if "sizes" in entry:
        columns |= _message_columns(event, entry)
    total = _TOTALS.get(entry["e"])
    for number in range(count):
        for name, values in columns.items():
            entry[name] = values[number]
        if number == 1 and total is not None and entry[total] > 0:
            entry[total] = 0
        if behind >= 0:
            entry["behind"] = behind + number
        yield _with_block(entry, event, number) if "blocks" in entry else entry


def _message_columns(event: Any, whole: dict[str, Any]) -> dict[str, list[Any]]:
    """Return the fields of each message of an event."""
    bounds, count = payload_bounds(event), event.count
    which = whole.get("which") or [0] * count
    columns: dict[str, list[Any]] = {
        "sizes": [end - begin for begin, end in pairwise(bounds)],
        "at": bounds[:count],
        "count": [1] * count,
        "topics": [[event.topics[at]] for at in which],
    }
    if "which" in whole:
        columns["which"] = [[]] * count
    else:
        columns["topics"] = [[topic] for topic in event.topics]
        columns["qos"] = [[qos] for qos in event.qos]
    if whole.get("properties"):
        columns["properties"] = [[properties] for properties in event.properties]
    if whole.get("waiting"):
        waiting = frozenset(from_runs(event.waiting))
        columns["waiting"] = [[ref] if ref in waiting else [] for ref in from_runs(event.refs)]
    return columns


def _with_block(entry: dict[str, Any], event: Any, number: int) -> dict[str, Any]:
    """Return a message with its own block only; its type and version stay last."""
    chosen = event.block_of[number] if event.block_of else 1
    kept = {name: value for name, value in entry.items() if name not in (*_BLOCKS, "e", "v")}
    if chosen:
        begin, end = block_bounds(event)[chosen - 1]
        kept |= {"blocks": [end - begin], "blocks_at": [begin]}
    return {**kept, "e": entry["e"], "v": entry["v"]}
