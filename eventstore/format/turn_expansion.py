"""Expands events of a whole turn into the equivalent events of single sessions.

Compiled: a start from the log expands nearly every event that it reads.
"""

from collections.abc import Callable, Sequence
from dataclasses import fields
from itertools import accumulate
from typing import Any, Final, TypeAlias

from eventstore.format.positions import from_runs, to_runs
from eventstore.format.turn_events import (
    TurnAcked,
    TurnDelivered,
    TurnPublished,
    TurnReleased,
)

_Raw: TypeAlias = dict[str, Any]
_ACKED: Final = ("Acked", "Received", "Completed")


def indices(by: Sequence[int], values: Sequence[Any], count: int) -> Sequence[int]:
    """Return the index of the value of each of ``count`` entries.

    Raises ValueError when the columns are inconsistent.
    """
    if not by:
        if len(values) == count:
            return range(count)
        if len(values) == 1:
            return [0] * count
        raise ValueError(f"{len(values)} values for {count} entries")
    if len(by) != count or min(by) < 0 or max(by) >= len(values):
        raise ValueError("an index without a value")
    return by


def fits(by: Sequence[int], values: Sequence[Any], count: int) -> bool:
    """Return whether :func:`indices` accepts these arguments."""
    if not by:
        return len(values) == count or len(values) == 1
    return len(by) == count and min(by) >= 0 and max(by) < len(values)


def expanded(raw: _Raw) -> list[_Raw]:
    """Return the events of single sessions that the JSON object of an event is equivalent to.

    An event of a single session, or one with inconsistent columns, is returned unchanged.
    """
    try:
        layout = _EXPAND.get(raw["e"])
        if layout is None:
            return [raw]
        names, expand = layout
        if raw["v"] != 1 or not names.issuperset(raw):
            return [raw]
        return expand(raw)
    except (KeyError, TypeError, ValueError, IndexError):
        return [raw]


def _groups(by: Sequence[int], values: Sequence[Any], count: int) -> list[tuple[int, int, int]]:
    """Return the runs of entries with equal indices: the index, the first entry, and the end.

    Raises ValueError as :func:`indices`.
    """
    if not by and len(values) == count:
        return [(at, at, at + 1) for at in range(count)]
    groups: list[tuple[int, int, int]] = []
    start = 0
    before = -1
    at = 0
    for index in indices(by, values, count):
        if index != before:
            if at > start:
                groups.append((before, start, at))
            start, before = at, index
        at += 1
    if at > start:
        groups.append((before, start, at))
    return groups


def _published(raw: _Raw) -> list[_Raw]:
    sessions: list[str] = raw["sessions"]
    topics: list[str] = raw["topics"]
    count: int = raw["count"]
    groups = _groups(raw["by"], sessions, count)
    which = indices(raw["which"], topics, count)
    pids: list[int] = raw["pids"]
    sizes = raw["sizes"]
    each: list[int] = [sizes] * count if isinstance(sizes, int) else sizes
    if len(pids) != count or len(each) != count:
        raise ValueError("columns of different lengths")
    begins = [*accumulate(each, initial=raw["at"])]
    blocks = _Blocks(raw, count) if "blocks" in raw else None
    qos = raw["qos"]
    events: list[_Raw] = []
    for index, start, stop in groups:
        if stop - start == 1:
            names, of = [topics[which[start]]], []
            sizes_of: Any = each[start]
            runs: Any = [pids[start]]
        else:
            named = [topics[at] for at in which[start:stop]]
            distinct = {name: number for number, name in enumerate(dict.fromkeys(named))}
            names = [*distinct]
            of = [distinct[name] for name in named] if len(distinct) > 1 else []
            sizes_of = each[start:stop]
            if sizes_of.count(sizes_of[0]) == len(sizes_of):
                sizes_of = sizes_of[0]
            runs = to_runs(pids[start:stop])
        event: _Raw = {
            "session": sessions[index],
            "qos": qos,
            "retain": False,
            "topics": names,
            "which": of,
            "pids": runs,
            "sizes": sizes_of,
            "at": begins[start],
            "count": stop - start,
            "will": False,
            "properties": None,
            "e": "MessagePublished",
            "v": 1,
        }
        events.append(event if blocks is None else _with_fields(event, blocks.of(start, stop)))
    return events


def _with_fields(event: _Raw, added: _Raw) -> _Raw:
    """Return an event with added fields before its type and version."""
    if not added:
        return event
    kind, version = event.pop("e"), event.pop("v")
    return {**event, **added, "e": kind, "v": version}


class _Blocks:
    """The property blocks of the messages of a TurnPublished."""

    def __init__(self, raw: _Raw, count: int) -> None:
        sizes: list[int] = raw["blocks"]
        self._sizes = sizes
        self._of: list[int] = raw.get("block_of") or [1] * count
        if len(self._of) != count or min(self._of) < 0 or max(self._of) > len(sizes):
            raise ValueError("a property block is missing")
        self._begins: list[int] = [*accumulate(sizes, initial=raw["at"] - sum(sizes))]

    def of(self, start: int, stop: int) -> _Raw:
        """Return the fields that contain the blocks of some of the messages."""
        numbers = self._of[start:stop]
        distinct = [number for number in dict.fromkeys(numbers) if number]
        if not distinct:
            return {}
        columns: _Raw = {
            "blocks": [self._sizes[number - 1] for number in distinct],
            "blocks_at": [self._begins[number - 1] for number in distinct],
        }
        if len(distinct) > 1 or 0 in numbers:
            new = {old: at for at, old in enumerate(distinct, 1)}
            columns["block_of"] = [new.get(number, 0) for number in numbers]
        return columns


def _delivered(raw: _Raw) -> list[_Raw]:
    sessions: list[str] = raw["sessions"]
    filters: list[str] = raw["filters"]
    pids: list[int] = raw["pids"]
    refs = from_runs(raw["refs"])
    groups = _groups(raw["by"], sessions, len(pids))
    if len(refs) != len(pids) or len(filters) != len(sessions):
        raise ValueError("columns of different lengths")
    qos = raw["qos"]
    events: list[_Raw] = []
    for index, start, stop in groups:
        alone = stop - start == 1
        events.append(
            {
                "session": sessions[index],
                "filter": filters[index],
                "qos": qos,
                "pids": [pids[start]] if alone else to_runs(pids[start:stop]),
                "refs": [refs[start]] if alone else to_runs(refs[start:stop]),
                "retain": False,
                "queued": -1,
                "e": "Delivered",
                "v": 1,
            }
        )
    return events


def _acked(raw: _Raw) -> list[_Raw]:
    sessions: list[str] = raw["sessions"]
    pids: list[int] = raw["pids"]
    kind = raw["kind"]
    if kind not in _ACKED:
        raise ValueError(kind)
    reasons: list[int] = raw.get("reasons", [])
    if reasons and len(reasons) != len(pids):
        raise ValueError("columns of different lengths")
    events: list[_Raw] = []
    for index, start, stop in _groups(raw["by"], sessions, len(pids)):
        runs: Any = [pids[start]] if stop - start == 1 else to_runs(pids[start:stop])
        event: _Raw = {"session": sessions[index], "pids": runs, "e": kind, "v": 1}
        if reasons:
            codes = reasons[start:stop]
            if any(codes):
                event = _with_fields(event, {"reasons": to_runs(codes)})
        events.append(event)
    return events


def _released(raw: _Raw) -> list[_Raw]:
    sessions: list[str] = raw["sessions"]
    pids: list[int] = raw["pids"]
    refs = from_runs(raw["refs"])
    if len(refs) != len(pids):
        raise ValueError("columns of different lengths")
    return [
        {
            "session": sessions[index],
            "pids": to_runs(pids[start:stop]),
            "refs": to_runs(refs[start:stop]),
            "e": "Released",
            "v": 1,
        }
        for index, start, stop in _groups(raw["by"], sessions, len(pids))
    ]


_EXPAND: Final[dict[str, tuple[frozenset[str], Callable[[_Raw], list[_Raw]]]]] = {
    kind.__name__: (frozenset(column.name for column in fields(kind)), expand)
    for kind, expand in (
        (TurnPublished, _published),
        (TurnDelivered, _delivered),
        (TurnAcked, _acked),
        (TurnReleased, _released),
    )
}
"""Event of a turn -> the names of its fields, and the function that expands it."""
