"""A parser without pydantic for the most frequent events.

Nearly all events of a log are of a few types and exactly as the current foldmq writes them. A few
comparisons of the types of all values recognize these, and they are built in a third of the time.
Anything else is left to ``parse_event``, which defines the valid events: where
:func:`parse_frequent` returns an event, ``parse_event`` returns an equal one.

The lists of an event are those of the JSON object, not copies.
"""

from collections.abc import Callable, Iterator
from dataclasses import fields
from typing import Any

from eventstore.format.event_parsing import VERSIONS, Event, UnreadableEvent, entries, parse_event
from eventstore.format.events import (
    Acked,
    Completed,
    Delivered,
    MessagePublished,
    Queued,
    Received,
    Released,
)
from eventstore.format.positions import count_runs
from eventstore.format.turn_events import TurnAcked, TurnDelivered, TurnEvent, TurnPublished
from eventstore.format.turn_expansion import fits


def parse_events(
    sequence: int, raw_events: list[dict[str, Any]], index: int = 0
) -> Iterator[tuple[int, Event]]:
    """Yield events of a record, validated and upcast, each with the index of its first entry.

    ``index`` is that of the first event. Raises UnreadableEvent, or UnknownEvent, with the entry
    that cannot be read and the reason.
    """
    for raw in raw_events:
        event = parse_frequent(raw)
        if event is None:
            try:
                event = parse_event(raw)
            except UnreadableEvent as error:
                raise type(error)(f"record {sequence}, entry {index}: {error}") from None
        yield index, event
        index += entries(event)


def parse_turn(raw: dict[str, Any]) -> TurnEvent | None:
    """Return the event of a turn in a JSON object, None if it must be expanded.

    None for any other event, and for one with properties, reason codes, releases, or inconsistent
    columns.
    """
    try:
        read = _TURNS.get(raw["e"])
        return read(raw) if read is not None and raw["v"] == 1 else None
    except (KeyError, TypeError):
        return None


def _turn_published(raw: dict[str, Any]) -> TurnPublished | None:
    sessions, topics, by, which = raw["sessions"], raw["topics"], raw["by"], raw["which"]
    pids, sizes, qos = raw["pids"], raw["sizes"], raw["qos"]
    at, count = raw["at"], raw["count"]
    if (
        len(raw) == _TURN_FIELDS[TurnPublished]
        and type(qos) is int
        and type(at) is int
        and type(count) is int
        and _strings(sessions)
        and _strings(topics)
        and _integers(by)
        and _integers(which)
        and _integers(pids)
        and len(pids) == count
        and (type(sizes) is int or (_integers(sizes) and len(sizes) == count))
        and fits(by, sessions, count)
        and fits(which, topics, count)
    ):
        return TurnPublished(sessions, by, qos, topics, which, pids, sizes, at, count)
    return None


def _turn_delivered(raw: dict[str, Any]) -> TurnDelivered | None:
    sessions, filters, by, qos = raw["sessions"], raw["filters"], raw["by"], raw["qos"]
    pids, refs = raw["pids"], raw["refs"]
    if (
        len(raw) == _TURN_FIELDS[TurnDelivered]
        and type(qos) is int
        and _strings(sessions)
        and _strings(filters)
        and len(filters) == len(sessions)
        and _integers(by)
        and _integers(pids)
        and _runs_of(refs, len(pids))
        and fits(by, sessions, len(pids))
    ):
        return TurnDelivered(sessions, filters, by, qos, pids, refs)
    return None


def _turn_acked(raw: dict[str, Any]) -> TurnAcked | None:
    sessions, by, pids, kind = raw["sessions"], raw["by"], raw["pids"], raw["kind"]
    if (
        len(raw) == _TURN_FIELDS[TurnAcked]
        and kind in ("Acked", "Received", "Completed")
        and _strings(sessions)
        and _integers(by)
        and _integers(pids)
        and fits(by, sessions, len(pids))
    ):
        return TurnAcked(kind, sessions, by, pids)
    return None


def parse_frequent(raw: dict[str, Any]) -> Event | None:
    """Return the event of a JSON object of the log; None: use ``parse_event``."""
    try:
        read, version, usual = _READERS[raw["e"]]
        written = raw["v"]
        if type(written) is not int or written != version:
            return None
        event = read(raw)
    except (KeyError, TypeError):  # another type or none at all, or a field is missing
        return None
    return event if len(raw) == usual or event is None else _with_added(event, raw)


def _with_added(event: Event, raw: dict[str, Any]) -> Event | None:
    """Set the later fields of an event that the JSON object contains."""
    for name, valid in _ADDED[type(event)].items():
        if name in raw:
            value = raw[name]
            if not valid(value):
                return None
            setattr(event, name, value)
    return event


def _is_bool(value: object) -> bool:
    return type(value) is bool


def _is_str(value: object) -> bool:
    return type(value) is str


def _is_int(value: object) -> bool:
    return type(value) is int


def _is_expiry(value: object) -> bool:
    return type(value) is int or _runs(value)


def _strings(values: object) -> bool:
    """Return whether a value is a list of strings."""
    if type(values) is not list:
        return False
    for value in values:  # noqa: SIM110 - as in _integers
        if type(value) is not str:
            return False
    return True


def _integers(values: object) -> bool:
    """Return whether a value is a list of integers."""
    if type(values) is not list:
        return False
    for value in values:  # noqa: SIM110 - all() costs a generator, more than the whole loop
        if type(value) is not int:
            return False
    return True


def _runs(values: object) -> bool:
    """Return whether a value is a list of integers and lists of integers."""
    if type(values) is not list:
        return False
    for value in values:  # noqa: SIM110 - as in _integers
        if type(value) is not int and not _integers(value):
            return False
    return True


def _runs_of(values: object, count: int) -> bool:
    """Return whether a value is a list of runs with ``count`` integers in total."""
    if not isinstance(values, list) or not _runs(values):
        return False
    for value in values:
        if type(value) is list and len(value) != 3:
            return False
    return count_runs(values) == count


def _published(raw: dict[str, Any]) -> MessagePublished | None:
    topics, sizes = raw["topics"], raw["sizes"]
    session, will, retain = raw["session"], raw["will"], raw["retain"]
    qos, at, count = raw["qos"], raw["at"], raw["count"]
    which, pids = raw["which"], raw["pids"]
    if (
        raw["properties"] is not None
        or type(session) is not str
        or type(qos) is not int
        or type(at) is not int
        or type(count) is not int
        or type(will) is not bool
        or type(retain) is not bool
        or type(topics) is not list
        or not (type(sizes) is int or _integers(sizes))
        or not (_integers(which) and _runs(pids))
    ):
        return None
    for topic in topics:
        if type(topic) is not str:
            return None
    return MessagePublished(session, qos, retain, topics, which, pids, sizes, at, count, will, None)


def _delivered(raw: dict[str, Any]) -> Delivered | None:
    session, topic_filter, qos = raw["session"], raw["filter"], raw["qos"]
    pids, refs, retain, queued = raw["pids"], raw["refs"], raw["retain"], raw["queued"]
    if (
        type(session) is str
        and type(topic_filter) is str
        and type(qos) is int
        and type(retain) is bool
        and type(queued) is int
        and _runs(pids)
        and _runs(refs)
    ):
        return Delivered(session, topic_filter, qos, pids, refs, retain, queued)
    return None


def _queued(raw: dict[str, Any]) -> Queued | None:
    session, topic_filter, qos = raw["session"], raw["filter"], raw["qos"]
    refs, size, retain = raw["refs"], raw["size"], raw["retain"]
    if (
        type(session) is str
        and type(topic_filter) is str
        and type(qos) is int
        and type(size) is int
        and type(retain) is bool
        and _runs(refs)
    ):
        return Queued(session, topic_filter, qos, refs, size, retain)
    return None


def _acked(raw: dict[str, Any]) -> Acked | None:
    session, pids = raw["session"], raw["pids"]
    return Acked(session, pids) if type(session) is str and _runs(pids) else None


def _received(raw: dict[str, Any]) -> Received | None:
    session, pids = raw["session"], raw["pids"]
    return Received(session, pids) if type(session) is str and _runs(pids) else None


def _completed(raw: dict[str, Any]) -> Completed | None:
    session, pids = raw["session"], raw["pids"]
    return Completed(session, pids) if type(session) is str and _runs(pids) else None


def _released(raw: dict[str, Any]) -> Released | None:
    session, pids, refs = raw["session"], raw["pids"], raw["refs"]
    if type(session) is str and _runs(pids) and _runs(refs):
        return Released(session, pids, refs)
    return None


_BUILDERS: tuple[tuple[type, Callable[[dict[str, Any]], Event | None]], ...] = (
    (MessagePublished, _published),
    (Delivered, _delivered),
    (Queued, _queued),
    (Acked, _acked),
    (Received, _received),
    (Completed, _completed),
    (Released, _released),
)

_BLOCKS: dict[str, Callable[[object], bool]] = {
    "blocks": _integers,
    "block_of": _integers,
    "blocks_at": _integers,
    "origins": _runs,
    "share": _is_str,
}
_ADDED: dict[type, dict[str, Callable[[object], bool]]] = {
    MessagePublished: _BLOCKS,
    Delivered: {"rap": _is_bool},
    Queued: {"expires": _is_expiry, "behind": _is_int},
    Acked: {"reasons": _runs},
    Received: {"reasons": _runs},
    Completed: {"reasons": _runs},
    Released: {},
}
"""Event type -> the fields after its version, with the check of their values."""

_READERS = {
    kind.__name__: (
        read,
        VERSIONS[kind.__name__],
        len(fields(kind)) - len(_ADDED[kind]),
    )
    for kind, read in _BUILDERS
}
"""Event type -> reader of its fields, the only version that it reads (the current one), and the
number of fields that are always present."""

_TURNS: dict[str, Callable[[dict[str, Any]], TurnEvent | None]] = {
    "TurnPublished": _turn_published,
    "TurnDelivered": _turn_delivered,
    "TurnAcked": _turn_acked,
}
_TURN_FIELDS: dict[type, int] = {TurnPublished: 11, TurnDelivered: 8, TurnAcked: 6}
"""Event of a turn -> number of its fields, without those that it has for MQTT 5 only."""
