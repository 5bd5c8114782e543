"""The JSON of each entry of an event, as that of an event of its own.

Folding these one after the other has the same result as folding the event: totals (the bytes that
entered or left a queue) are in the first one and are 0 in the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import orjson

from eventstore.format.event_json import field_values, json_object
from eventstore.format.event_parsing import Event
from eventstore.format.events import Acked, Completed, Delivered, MessagePublished, Received
from eventstore.format.positions import from_runs
from eventstore.format.records import payload_bounds
from eventstore.format.stored_properties import block_bounds
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished
from eventstore.format.turn_expansion import indices

if TYPE_CHECKING:
    from spark.tables.event_groups import TableEvent

_TOTALS: Final = {"Delivered": "queued", "Queued": "size", "Expired": "size", "Assigned": "queued"}
_RUNS: Final = ("pids", "refs", "reasons")
"""Columns of runs with a value for each entry, if an event has them."""
_BLOCKS: Final = ("blocks", "block_of", "blocks_at")
_ACKED: Final = {kind.__name__: kind for kind in (Acked, Received, Completed)}

_Column = tuple[bytes, "Iterable[Any]"]
"""The format of a field that differs between entries, and its values."""


def entry_texts(event: TableEvent, count: int) -> Iterable[bytes]:
    """Return the JSON of each of the ``count`` entries of an event."""
    if not count:
        return ()
    if isinstance(event, (TurnPublished, TurnDelivered, TurnAcked)):
        whole, columns = _turn_columns(event, count)
    else:
        if count == 1:
            return (orjson.dumps(json_object(event)),)
        whole = dict(field_values(event))
        columns = _columns(event, whole, count)
    fields: list[bytes] = []
    values: list[Iterable[Any]] = []
    for name, value in whole.items():
        if name == "e" and "blocks" in columns:
            fields.append(b"%b")
            values.append(columns["blocks"][1])
        if name in _BLOCKS:
            continue
        if name in columns:
            form, column = columns[name]
            fields.append(b',"%b":' % name.encode() + form)
            values.append(column)
        else:
            fields.append(b',"%b":' % name.encode() + orjson.dumps(value).replace(b"%", b"%%"))
    form = b"{" + b"".join(fields)[1:] + b"}"
    return map(form.__mod__, zip(*values, strict=True)) if values else (form % (),) * count


def _columns(event: Event, whole: dict[str, Any], count: int) -> dict[str, _Column]:
    """Return the fields that differ between entries."""
    columns: dict[str, _Column] = {
        name: (b"[%d]", from_runs(whole[name])) for name in _RUNS if whole.get(name)
    }
    if isinstance(expires := whole.get("expires"), list):
        columns["expires"] = b"%d", from_runs(expires)
    total = _TOTALS.get(whole["e"])
    if total is not None and whole[total] > 0:
        columns[total] = b"%d", [whole[total], *[0] * (count - 1)]
    if (behind := whole.get("behind", -1)) >= 0:
        columns["behind"] = b"%d", range(behind, behind + count)
    if "sizes" in whole:
        columns |= _message_columns(event, whole)
    return columns


def _texts(values: Sequence[Any]) -> _Column:
    return b"%b", map(orjson.dumps, values)


def _message_columns(event: Any, whole: dict[str, Any]) -> dict[str, _Column]:
    """Return the fields of the messages of an event that differ between them."""
    bounds, count = payload_bounds(event), event.count
    which = whole.get("which") or [0] * count
    columns: dict[str, _Column] = {
        "sizes": (b"%d", [end - begin for begin, end in pairwise(bounds)]),
        "at": (b"%d", bounds[:count]),
        "count": (b"%d", [1] * count),
    }
    if "which" in whole:
        topics = [orjson.dumps([topic]) for topic in event.topics]
        columns["topics"] = b"%b", [topics[at] for at in which]
        columns["which"] = b"%b", [b"[]"] * count
    else:
        columns["topics"] = _texts([[topic] for topic in event.topics])
        columns["qos"] = b"[%d]", event.qos
    if whole.get("properties"):
        columns["properties"] = _texts([[properties] for properties in event.properties])
    if whole.get("waiting"):
        waiting = frozenset(from_runs(event.waiting))
        refs = from_runs(event.refs)
        columns["waiting"] = _texts([[ref] if ref in waiting else [] for ref in refs])
    if "blocks" in whole:
        texts = [b""] + [
            b',"blocks":[%d],"blocks_at":[%d]' % (end - begin, begin)
            for begin, end in block_bounds(event)
        ]
        columns["blocks"] = b"%b", [texts[at] for at in event.block_of or [1] * count]
    return columns


def _turn_columns(
    event: TurnPublished | TurnDelivered | TurnAcked, count: int
) -> tuple[dict[str, Any], dict[str, _Column]]:
    """Return an event of one session, and the fields that differ between those of a turn."""
    of = indices(event.by, event.sessions, count)
    columns: dict[str, _Column] = {
        "session": _picked(event.sessions, of),
        "pids": (b"[%d]", event.pids),
    }
    single: Event
    if isinstance(event, TurnAcked):
        single = _ACKED[event.kind]("", [])
    elif isinstance(event, TurnDelivered):
        single = Delivered("", "", event.qos, [], [])
        columns |= {
            "filter": _picked(event.filters, of),
            "refs": (b"[%d]", from_runs(event.refs)),
        }
    else:
        single = MessagePublished("", event.qos, False, [], [], [], 0, 0, 1)
        bounds = payload_bounds(event)  # type: ignore[arg-type] # its columns are the same
        _, topics = _picked(event.topics, indices(event.which, event.topics, count))
        columns |= {
            "topics": (b"[%b]", topics),
            "sizes": (b"%d", [end - begin for begin, end in pairwise(bounds)]),
            "at": (b"%d", bounds[:count]),
        }
    return dict(field_values(single)), columns


def _picked(values: Sequence[str], of: Iterable[int]) -> _Column:
    texts = [*map(orjson.dumps, values)]
    return b"%b", [texts[at] for at in of]
