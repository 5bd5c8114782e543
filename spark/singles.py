"""An event about many messages as events about one message each, in JSON.

Folding these one after the other gives what folding the event gives: totals (the bytes that
entered or left a queue) stand in the first one and are 0 in the others.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import orjson
import pyarrow as pa

from spark.groups import LIST, MESSAGES, NONE, Group
from spark.runs import Misfit

if TYPE_CHECKING:
    from collections.abc import Sequence

_TOTALS: Final = {"Delivered": "queued", "Queued": "size"}


def as_json(group: Group, first: int, last: int) -> Sequence[bytes]:
    """Return the entries of a group from one to before another, each as an event of its own.

    Raises Misfit as the group does.
    """
    if group.single:
        return [orjson.dumps(raw) for raw in group.raws[first:last]]
    if group.kind in MESSAGES:
        return _messages(group, first, last)
    return _of_runs(group, first, last)


def json_array(texts: Sequence[bytes | None]) -> pa.Array:
    """Return JSON as strings; Arrow would take 50 times as long to look whether it is UTF-8."""
    return pa.array(texts, pa.binary()).view(pa.string())


def _of_runs(group: Group, first: int, last: int) -> list[bytes]:
    names: list[str] = [name for name in ("pids", "refs") if name in group.raws[0]]
    columns = [group.pids()[0] if name == "pids" else group.refs() for name in names]
    texts = [_Pieces(raw, names, _TOTALS.get(group.kind)) for raw in group.raws]
    single = (group.counts == 1).tolist()
    return [
        orjson.dumps(group.raws[event]) if single[event] else texts[event].filled(entry, numbers)
        for event, entry, *numbers in zip(
            group.event_of[first:last].tolist(),
            group.entry[first:last].tolist(),
            *(column[first:last].tolist() for column in columns),
            strict=True,
        )
    ]


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


def _messages(group: Group, first: int, last: int) -> list[bytes]:
    """Return the entries of events that bring messages."""
    topics, pick = group.topics()
    each: dict[str, Sequence[Any]] = {}
    if group.kind == "MessagePublished":
        values, which = group.pids()
        pids = values.tolist()
        of = range(group.total) if which is None else which.tolist()
        each["pids"] = [[pids[at]] if at >= 0 else [] for at in of[first:last]]
        each["properties"] = _properties(group)[first:last]
    else:
        refs: list[int] = group.refs()[first:last].tolist()
        each["refs"] = [[ref] for ref in refs]
        if group.kind == "MessagesCarried":
            waiting = set(group.runs("waiting")[1].tolist())
            each["waiting"] = [[ref] if ref in waiting else [] for ref in refs]
        else:
            each["qos"] = [[qos] for qos in group.for_each("qos")[first:last]]
    where = range(group.total) if pick is None else pick.tolist()
    each["topics"] = [[topics[at]] for at in where[first:last]]
    each["sizes"] = group.sizes[first:last].tolist()
    each["at"] = group.starts[first:last].tolist()
    names = list(each)
    single = (group.counts == 1).tolist()
    found: list[bytes] = []
    for event, *parts in zip(group.event_of[first:last].tolist(), *each.values(), strict=True):
        if single[event]:
            found.append(orjson.dumps(group.raws[event]))
            continue
        one = {**group.raws[event], "count": 1}
        if "which" in one:
            one["which"] = []
        one.update(zip(names, parts, strict=True))
        found.append(orjson.dumps(one))
    return found


def _properties(group: Group) -> list[Any]:
    each: list[Any] = []
    lists = group.field("properties", LIST | NONE)
    for properties, count in zip(lists, group.counts.tolist(), strict=True):
        if properties is not None and len(properties) != count:
            raise Misfit("MessagePublished with another number of properties than of messages")
        each += [None] * count if properties is None else [[one] for one in properties]
    return each
