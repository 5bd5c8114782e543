"""An event about many messages as events about one message each, in JSON.

Folding these one after the other gives what folding the event gives: totals (the bytes that
entered or left a queue) stand in the first one and are 0 in the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import numpy as np
import orjson
import pyarrow as pa

from spark.groups import MESSAGES, Group
from spark.runs import Misfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from spark.layout import Layout
    from spark.structs import Text

_TOTALS: Final = {"Delivered": "queued", "Queued": "size"}


def as_json(layout: Layout, group: Group, first: int, last: int) -> Sequence[Text]:
    """Return the entries of a group from one to before another, each as an event of its own.

    Raises Misfit as the group does.
    """
    texts = layout.texts()
    if group.single:
        return [texts[number] for number in group.numbers[first:last].tolist()]
    raws = _Raws(texts, group.numbers.tolist())
    some: list[Text] = list(
        (_messages if group.kind in MESSAGES else _of_runs)(group, raws, first, last)
    )
    for at in np.flatnonzero(group.counts[group.event_of[first:last]] == 1).tolist():
        some[at] = texts[int(group.numbers[group.event_of[first + at]])]
    return some


def json_array(texts: Sequence[Text | None]) -> pa.Array:
    """Return JSON as an array of strings.

    The texts are joined soon, not kept: many small ones of uneven size wear out the allocator.
    """
    some = [b"" if text is None else text for text in texts]
    offsets = np.zeros(len(some) + 1, np.int32)
    np.cumsum(np.fromiter(map(len, some), np.int64, len(some)), out=offsets[1:])
    valid = None
    if None in texts:
        known = np.fromiter((text is not None for text in texts), np.bool_, len(texts))
        valid = pa.py_buffer(np.packbits(known, bitorder="little"))
    data = pa.py_buffer(b"".join(some))
    return pa.Array.from_buffers(pa.string(), len(some), [valid, pa.py_buffer(offsets), data])


class _Raws(dict[int, dict[str, Any]]):
    """The events of a group as JSON objects, each parsed when it is asked for."""

    def __init__(self, texts: Sequence[Text], numbers: Sequence[int]) -> None:
        super().__init__()
        self._texts = texts
        self._numbers = numbers

    def __missing__(self, event: int) -> dict[str, Any]:
        self[event] = raw = orjson.loads(memoryview(self._texts[self._numbers[event]]))
        return raw  # type: ignore[no-any-return]


def _of_runs(group: Group, raws: _Raws, first: int, last: int) -> list[bytes]:
    names: list[str] = [name for name in ("pids", "refs") if hasattr(group.events[0], name)]
    columns = [group.pids()[0] if name == "pids" else group.refs() for name in names]
    total = _TOTALS.get(group.kind)
    pieces: dict[int, _Pieces] = {}
    found: list[bytes] = []
    for event, entry, *numbers in zip(
        group.event_of[first:last].tolist(),
        group.entry[first:last].tolist(),
        *(column[first:last].tolist() for column in columns),
        strict=True,
    ):
        if event not in pieces:
            pieces[event] = _Pieces(raws[event], names, total)
        found.append(pieces[event].filled(entry, numbers))
    return found


class _Pieces:
    """The JSON of an event, in pieces between which the numbers of one entry are put."""

    def __init__(self, raw: dict[str, Any], names: list[str], total: str | None) -> None:
        one: dict[str, Any] = {name: [0] if name in names else raw[name] for name in raw}
        if [name for name in raw if name in names] != names:  # nobody writes it so
            one = {name: one[name] for name in (*(one.keys() - set(names)), *names)}
        self._first = self._other = _split(one, names)
        if total is not None and raw[total] > 0:
            self._other = _split({**one, total: 0}, names)

    def filled(self, entry: int, numbers: Sequence[int]) -> bytes:
        """Return the JSON of an entry."""
        pieces = self._other if entry else self._first
        text = pieces[0]
        for number, piece in zip(numbers, pieces[1:], strict=True):
            text += f"{number}{piece}"
        return text.encode()


def _split(one: dict[str, Any], names: Sequence[str]) -> list[str]:
    """Cut JSON at the single number that each of some arrays has; they follow in this order."""
    pieces: list[str] = []
    rest = orjson.dumps(one).decode()
    for name in names:  # in a string the quotes of such a name would be escaped
        piece, mark, rest = rest.partition(f'"{name}":[0')
        pieces.append(piece + mark[:-1])
    return [*pieces, rest]


def _messages(group: Group, raws: _Raws, first: int, last: int) -> list[bytes]:
    """Return the entries of events that bring messages."""
    topics, pick = group.topics()
    each: dict[str, Sequence[Any]] = {}
    if group.kind == "MessagePublished":
        values, which = group.pids()
        pids = values.tolist()
        of = range(group.total) if which is None else which.tolist()
        each["pids"] = [[pids[at]] if at >= 0 else [] for at in of[first:last]]
        each["properties"] = _properties(group, raws, first, last)
    else:
        refs: list[int] = group.refs()[first:last].tolist()
        each["refs"] = [[ref] for ref in refs]
        if group.kind == "MessagesCarried":
            waits = group.waits()[first:last].tolist()
            each["waiting"] = [[ref] if wait else [] for ref, wait in zip(refs, waits, strict=True)]
        else:
            each["qos"] = [[qos] for qos in group.for_each("qos")[first:last]]
    where = range(group.total) if pick is None else pick.tolist()
    each["topics"] = [[topics[at]] for at in where[first:last]]
    each["sizes"] = group.sizes[first:last].tolist()
    each["at"] = group.starts[first:last].tolist()
    names = list(each)
    found: list[bytes] = []
    for event, *parts in zip(group.event_of[first:last].tolist(), *each.values(), strict=True):
        one = {**raws[event], "count": 1}
        if "which" in one:
            one["which"] = []
        one.update(zip(names, parts, strict=True))
        found.append(orjson.dumps(one))
    return found


def _properties(group: Group, raws: _Raws, first: int, last: int) -> list[Any]:
    """Return the properties of each message, in a list of their own."""
    for properties, count in zip(group.field("properties"), group.counts.tolist(), strict=True):
        if properties is not None and len(properties) != count:
            raise Misfit("MessagePublished with another number of properties than of messages")
    places = zip(group.event_of[first:last].tolist(), group.entry[first:last].tolist(), strict=True)
    return [
        None if (each := raws[event].get("properties")) is None else [each[entry]]
        for event, entry in places
    ]
