"""The events of several sessions in one turn: one event with columns for each kind.

Thousands of clients that send one packet each would cause thousands of events with one entry.
Instead, a turn of the event loop writes one event for each kind, with a column that contains the
session of each entry. The entries are in the order in which they happened, and each has a position
of its own as in any event.

Only the writer of the log and its live fold know these events. A record that is read back contains
events of single sessions in their place (:func:`expanded`), entry for entry at the same positions,
so that folds, audits and tools see one kind of event for one kind of fact.
"""

from __future__ import annotations

from collections.abc import Sequence  # noqa: TC003 - pydantic reads the annotations
from dataclasses import dataclass, fields
from itertools import accumulate, groupby
from typing import TYPE_CHECKING, Any, Final, Literal, TypeAlias

from eventstore.format.positions import Run, from_runs, to_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


@dataclass(slots=True)
class TurnPublished:
    """Messages were accepted from several sessions in one turn: one entry each, none retained.

    Each stands for a MessagePublished of one session.
    """

    sessions: list[str]
    """Client identifiers."""
    by: list[int]
    """For each message, the index of its session; empty when each has the next one, or all have
    the only one."""
    qos: int
    """1 or 2."""
    topics: list[str]
    """The distinct topics."""
    which: list[int]
    """For each message, the index of its topic; empty as ``by`` is."""
    pids: list[int]
    """Packet identifier of each message."""
    sizes: list[int] | int
    """Payload bytes of each message; one number when all have the same size."""
    at: int
    """Offset of the first payload in the record's payload area; the others follow it."""
    count: int
    """Number of messages."""
    e: Literal["TurnPublished"] = "TurnPublished"
    v: Literal[1] = 1
    blocks: Sequence[int] = ()
    """Bytes of each distinct block of properties (MQTT 5). The blocks stand directly before the
    first payload, one after the other."""
    block_of: Sequence[int] = ()
    """For each message the number of its block, from 1, or 0 for none; empty when all have the
    same single block, or none has any."""


@dataclass(slots=True)
class TurnDelivered:
    """Messages were sent to several sessions in one turn, on arrival: one entry each.

    Each stands for a Delivered of one subscription.
    """

    sessions: list[str]
    """Client identifiers: one for each subscription."""
    filters: list[str]
    """Topic filters: one for each subscription."""
    by: list[int]
    """For each message, the index of its subscription; empty when each has the next one, or all
    have the only one."""
    qos: int
    """QoS of the deliveries, 1 or 2."""
    pids: list[int]
    """Packet identifier of each delivery."""
    refs: list[Run]
    """Positions of the messages."""
    e: Literal["TurnDelivered"] = "TurnDelivered"
    v: Literal[1] = 1


@dataclass(slots=True)
class TurnAcked:
    """Acknowledgements of one kind were received from several sessions in one turn: one entry each.

    Each stands for an Acked, Received or Completed of one session.
    """

    kind: Literal["Acked", "Received", "Completed"]
    """The event that each stands for."""
    sessions: list[str]
    """Client identifiers."""
    by: list[int]
    """For each acknowledgement, the index of its session; empty when each has the next one, or all
    have the only one."""
    pids: list[int]
    """Packet identifier of each."""
    e: Literal["TurnAcked"] = "TurnAcked"
    v: Literal[1] = 1
    reasons: Sequence[int] = ()
    """Reason code of each (MQTT 5); empty when all are 0."""


@dataclass(slots=True)
class TurnReleased:
    """PUBREL was received from several sessions in one turn: one entry each.

    Each stands for a Released of one session.
    """

    sessions: list[str]
    """Client identifiers."""
    by: list[int]
    """For each message, the index of its session; empty when each has the next one, or all have
    the only one."""
    pids: list[int]
    """Packet identifier of each message."""
    refs: list[Run]
    """Positions of the messages."""
    e: Literal["TurnReleased"] = "TurnReleased"
    v: Literal[1] = 1


TurnEvent: TypeAlias = TurnPublished | TurnDelivered | TurnAcked | TurnReleased

STANDS_FOR: Final = {
    "MessagePublished": "TurnPublished",
    "Delivered": "TurnDelivered",
    "Acked": "TurnAcked",
    "Received": "TurnAcked",
    "Completed": "TurnAcked",
    "Released": "TurnReleased",
}
"""Event of one session -> event of a turn that may stand for it in a record."""


def indices(by: Sequence[int], values: Sequence[Any], count: int) -> Sequence[int]:
    """Return for each of ``count`` entries which of the values it has.

    Raises ValueError when the columns do not fit together.
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


def expanded(raw: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the events of single sessions that the JSON object of an event stands for.

    An event of a single session, or one with inconsistent columns, is returned unchanged.
    """
    try:
        kind, known = _EXPAND[raw["e"]]
        if raw["v"] != 1 or raw.keys() - {one.name for one in fields(kind)}:
            return [raw]
        return [*known(raw)]
    except (KeyError, TypeError, ValueError, IndexError):
        return [raw]


def _groups(by: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yield runs of equal indexes: the index, the first entry, and the end of the run."""
    at = 0
    for index, some in groupby(by):
        start, at = at, at + sum(1 for _ in some)
        yield index, start, at


def _published(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sessions, topics, count = raw["sessions"], raw["topics"], raw["count"]
    by = indices(raw["by"], sessions, count)
    which = indices(raw["which"], topics, count)
    pids, sizes = raw["pids"], raw["sizes"]
    each = [sizes] * count if isinstance(sizes, int) else sizes
    if len(pids) != count or len(each) != count:
        raise ValueError("columns of different lengths")
    begins = [*accumulate(each, initial=raw["at"])]
    blocks = _Blocks(raw, count) if "blocks" in raw else None
    for session, start, stop in _groups(by):
        names = [topics[at] for at in which[start:stop]]
        distinct = {name: number for number, name in enumerate(dict.fromkeys(names))}
        some = each[start:stop]
        one = {
            "session": sessions[session],
            "qos": raw["qos"],
            "retain": False,
            "topics": [*distinct],
            "which": [distinct[name] for name in names] if len(distinct) > 1 else [],
            "pids": to_runs(pids[start:stop]),
            "sizes": some[0] if some.count(some[0]) == len(some) else some,
            "at": begins[start],
            "count": stop - start,
            "will": False,
            "properties": None,
            "e": "MessagePublished",
            "v": 1,
        }
        yield one if blocks is None else _with_fields(one, blocks.of(start, stop))


def _with_fields(one: dict[str, Any], added: dict[str, Any]) -> dict[str, Any]:
    """Return an event with added fields before its type and version."""
    if not added:
        return one
    kind, version = one.pop("e"), one.pop("v")
    return {**one, **added, "e": kind, "v": version}


class _Blocks:
    """The property blocks of the messages of a TurnPublished."""

    def __init__(self, raw: dict[str, Any], count: int) -> None:
        self._sizes = sizes = raw["blocks"]
        self._of: list[int] = raw.get("block_of") or [1] * count
        if len(self._of) != count or min(self._of) < 0 or max(self._of) > len(sizes):
            raise ValueError("a property block is missing")
        self._begins = [*accumulate(sizes, initial=raw["at"] - sum(sizes))]

    def of(self, start: int, stop: int) -> dict[str, Any]:
        """Return the fields that contain the blocks of some of the messages."""
        numbers = self._of[start:stop]
        distinct = [one for one in dict.fromkeys(numbers) if one]
        if not distinct:
            return {}
        fields = {
            "blocks": [self._sizes[one - 1] for one in distinct],
            "blocks_at": [self._begins[one - 1] for one in distinct],
        }
        if len(distinct) > 1 or 0 in numbers:
            new = {old: at for at, old in enumerate(distinct, 1)}
            fields["block_of"] = [new.get(one, 0) for one in numbers]
        return fields


def _delivered(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sessions, filters, pids = raw["sessions"], raw["filters"], raw["pids"]
    refs = from_runs(raw["refs"])
    by = indices(raw["by"], sessions, len(pids))
    if len(refs) != len(pids) or len(filters) != len(sessions):
        raise ValueError("columns of different lengths")
    for index, start, stop in _groups(by):
        yield {
            "session": sessions[index],
            "filter": filters[index],
            "qos": raw["qos"],
            "pids": to_runs(pids[start:stop]),
            "refs": to_runs(refs[start:stop]),
            "retain": False,
            "queued": -1,
            "e": "Delivered",
            "v": 1,
        }


def _acked(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sessions, pids, kind = raw["sessions"], raw["pids"], raw["kind"]
    if kind not in ("Acked", "Received", "Completed"):
        raise ValueError(kind)
    reasons = raw.get("reasons", [])
    if reasons and len(reasons) != len(pids):
        raise ValueError("columns of different lengths")
    for index, start, stop in _groups(indices(raw["by"], sessions, len(pids))):
        one = {"session": sessions[index], "pids": to_runs(pids[start:stop]), "e": kind, "v": 1}
        if reasons and any(some := reasons[start:stop]):
            one = _with_fields(one, {"reasons": to_runs(some)})
        yield one


def _released(raw: dict[str, Any]) -> Iterator[dict[str, Any]]:
    sessions, pids, refs = raw["sessions"], raw["pids"], from_runs(raw["refs"])
    if len(refs) != len(pids):
        raise ValueError("columns of different lengths")
    for index, start, stop in _groups(indices(raw["by"], sessions, len(pids))):
        yield {
            "session": sessions[index],
            "pids": to_runs(pids[start:stop]),
            "refs": to_runs(refs[start:stop]),
            "e": "Released",
            "v": 1,
        }


_EXPAND: Final[
    dict[str, tuple[type[TurnEvent], Callable[[dict[str, Any]], Iterator[dict[str, Any]]]]]
] = {
    "TurnPublished": (TurnPublished, _published),
    "TurnDelivered": (TurnDelivered, _delivered),
    "TurnAcked": (TurnAcked, _acked),
    "TurnReleased": (TurnReleased, _released),
}
