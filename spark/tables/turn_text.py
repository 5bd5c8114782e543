"""Writes events of several sessions as the JSON of the events that they stand for.

``eventstore.format.turn_events`` defines them. Tables with a row for each event need this text;
entries are read without it (``turn_groups``). If each entry belongs to another session, as with
single packets, the text is assembled from columns cut out of the text, without an object or a
number for each: that takes a fraction of the time. Events of another form than foldmq writes are
left to the reader of the text.
"""

from __future__ import annotations

from dataclasses import fields as fields_of
from itertools import accumulate, chain, repeat
from operator import eq
from typing import TYPE_CHECKING, Any, Final

import msgspec
import orjson

from eventstore.format.positions import from_runs
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnPublished, TurnReleased
from eventstore.format.turn_expansion import expanded

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

_TURN: Final = b'"e":"Turn'
_ADDED: Final = frozenset({"blocks", "block_of", "reasons"})
"""Optional fields of an event."""
_LONGEST_TAIL: Final = 40
"""Maximum bytes of the end of an event, from its type on."""

Raw = dict[str, msgspec.Raw]
_events: Final = msgspec.json.Decoder(list[msgspec.Raw])
_fields: Final = msgspec.json.Decoder(Raw)


class _Otherwise(Exception):  # noqa: N818 - no error: it is expanded another way
    """The event has neighbours of one session, or unknown columns."""


def without_turns(area: memoryview) -> memoryview:
    """Return the JSON of a record's events, with commas between them, without events of turns.

    An event whose columns do not fit together is left unchanged.
    """
    text = bytes(area)
    if _TURN not in text:  # in a string the quotes would be escaped
        return area
    try:
        some = _events.decode(b"[" + text + b"]")
        return memoryview(b",".join(_written(bytes(one)) for one in some))
    except (ValueError, TypeError, KeyError, IndexError):
        return area


def _written(event: bytes) -> bytes:
    if _TURN not in event[-_LONGEST_TAIL:]:
        return event
    fields = _fields.decode(event)
    kind = str(_parsed(fields["e"]))
    writer = _WRITERS.get(kind)
    if writer is None:
        return event
    try:
        if fields.keys() - _ADDED == _COLUMNS[kind] and bytes(fields["v"]) == b"1":
            return "".join(chain.from_iterable(writer(fields)))[1:].encode()
    except (_Otherwise, KeyError, TypeError, ValueError, IndexError):
        pass
    return b",".join(map(orjson.dumps, expanded(orjson.loads(event))))


def _parsed(raw: msgspec.Raw) -> Any:
    return orjson.loads(bytes(raw))


def _numbers(raw: msgspec.Raw, count: int | None = None) -> list[str]:
    """Return the numbers of a list as they are written."""
    text = bytes(raw).decode()
    found = text[1:-1].split(",") if len(text) > len("[]") else []
    if count is not None and len(found) != count:
        raise _Otherwise
    return found


def _names(raw: msgspec.Raw) -> list[str]:
    """Return the strings of a list as they are written, without their quotes."""
    text = bytes(raw).decode()
    if not text.startswith('["') or not text.endswith('"]'):
        raise _Otherwise
    return text[2:-2].split('","')  # in a string the quotes would be escaped


def _each(names: list[str], by: Sequence[int], count: int) -> Sequence[str]:
    """Return the name of each entry."""
    if by:
        if len(by) != count or min(by) < 0:
            raise _Otherwise
        return [names[at] for at in by]
    if len(names) == count:
        return names
    if len(names) == 1:
        return names * count
    raise _Otherwise


def _owners(fields: Mapping[str, msgspec.Raw], count: int) -> tuple[Sequence[str], Sequence[int]]:
    """Return the session of each entry, and its number; neighbours must have different ones."""
    names, by = _names(fields["sessions"]), _parsed(fields["by"])
    if any(map(eq, by, by[1:])) or (not by and len(names) != count):
        raise _Otherwise
    return _each(names, by, count), by


def _published(fields: Mapping[str, msgspec.Raw]) -> Iterable[tuple[str, ...]]:
    count: int = _parsed(fields["count"])
    pids = _numbers(fields["pids"], count)
    sessions, _ = _owners(fields, count)
    topics = _each(_names(fields["topics"]), _parsed(fields["which"]), count)
    sizes = _parsed(fields["sizes"])
    each: Sequence[int] = [sizes] * count if isinstance(sizes, int) else sizes
    if len(each) != count:
        raise _Otherwise
    at: int = _parsed(fields["at"])
    head = f'","qos":{_parsed(fields["qos"])},"retain":false,"topics":["'
    tail = '"e":"MessagePublished","v":1}'
    return zip(
        repeat(',{"session":"'),
        sessions,
        repeat(head),
        topics,
        repeat('"],"which":[],"pids":['),
        pids,
        repeat('],"sizes":'),
        map(str, each),
        repeat(',"at":'),
        map(str, accumulate(each, initial=at)),
        repeat(',"count":1,"will":false,"properties":null,'),
        _blocks(fields, at, count),
        repeat(tail),
        strict=False,
    )


def _blocks(fields: Mapping[str, msgspec.Raw], at: int, count: int) -> Iterable[str]:
    """Return the fields that refer to the property block of each message."""
    if "blocks" not in fields:
        return repeat("", count)
    sizes: list[int] = _parsed(fields["blocks"])
    begins = accumulate(sizes, initial=at - sum(sizes))
    made = [
        f'"blocks":[{size}],"blocks_at":[{begin}],'
        for size, begin in zip(sizes, begins, strict=False)
    ]
    if "block_of" not in fields:
        return repeat(made[0], count)
    return _each(["", *made], _parsed(fields["block_of"]), count)


def _delivered(fields: Mapping[str, msgspec.Raw]) -> Iterable[tuple[str, ...]]:
    pids = _numbers(fields["pids"])
    sessions, by = _owners(fields, len(pids))
    filters = _names(fields["filters"])
    if not by and len(filters) != len(pids):
        raise _Otherwise
    return zip(
        repeat(',{"session":"'),
        sessions,
        repeat('","filter":"'),
        _each(filters, by, len(pids)),
        repeat(f'","qos":{_parsed(fields["qos"])},"pids":['),
        pids,
        repeat('],"refs":['),
        _refs(fields, len(pids)),
        repeat('],"retain":false,"queued":-1,"e":"Delivered","v":1}'),
        strict=False,
    )


def _refs(fields: Mapping[str, msgspec.Raw], count: int) -> Iterator[str]:
    refs = from_runs(_parsed(fields["refs"]))
    if len(refs) != count:
        raise _Otherwise
    return map(str, refs)


def _acked(fields: Mapping[str, msgspec.Raw]) -> Iterable[tuple[str, ...]]:
    pids, kind = _numbers(fields["pids"]), _parsed(fields["kind"])
    if kind not in ("Acked", "Received", "Completed"):
        raise _Otherwise
    if "reasons" in fields:
        raise _Otherwise
    sessions, _ = _owners(fields, len(pids))
    return zip(
        repeat(',{"session":"'),
        sessions,
        repeat('","pids":['),
        pids,
        repeat(f'],"e":"{kind}","v":1}}'),
        strict=False,
    )


def _released(fields: Mapping[str, msgspec.Raw]) -> Iterable[tuple[str, ...]]:
    pids = _numbers(fields["pids"])
    sessions, _ = _owners(fields, len(pids))
    return zip(
        repeat(',{"session":"'),
        sessions,
        repeat('","pids":['),
        pids,
        repeat('],"refs":['),
        _refs(fields, len(pids)),
        repeat('],"e":"Released","v":1}'),
        strict=False,
    )


_WRITERS: Final[Mapping[str, Callable[[Mapping[str, msgspec.Raw]], Iterable[tuple[str, ...]]]]] = {
    "TurnPublished": _published,
    "TurnDelivered": _delivered,
    "TurnAcked": _acked,
    "TurnReleased": _released,
}
_COLUMNS: Final = {
    kind.__name__: frozenset(one.name for one in fields_of(kind)) - _ADDED
    for kind in (TurnPublished, TurnDelivered, TurnAcked, TurnReleased)
}
"""The fields of the events written here."""
