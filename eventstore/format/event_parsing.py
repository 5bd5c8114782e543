"""All events of the log together: their parser, versions, JSON Schema and entries.

Readers of a log parse with :func:`parse_event`, which validates (pydantic) and upcasts older
versions first, so that the rest of the code only ever sees the current types. The log itself is
never rewritten.
"""

from collections.abc import Callable, Iterable
from operator import attrgetter
from typing import Annotated, Any, Final, TypeAlias, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from eventstore.format import destination_events, events, node_events, turn_events
from eventstore.format.erasure_events import ErasureEvent
from eventstore.format.positions import Run, count_runs
from eventstore.format.turn_events import TurnEvent
from protocol.errors import FoldmqError


class UnreadableEvent(FoldmqError):  # noqa: N818 - named as its siblings in errors
    """An event in the log is invalid."""

    exit_code = 65


class UnknownEvent(UnreadableEvent):
    """An event in the log has a type or version of a later foldmq."""

    exit_code = 78


Event: TypeAlias = (
    events.SessionEvent | node_events.NodeEvent | destination_events.DestinationEvent | ErasureEvent
)
"""An event as readers see it."""

LogEvent: TypeAlias = Event | TurnEvent
"""An event as it is written."""

_ADAPTER: TypeAdapter[Event] = TypeAdapter(
    Annotated[Event, Field(discriminator="e")], config=ConfigDict(extra="ignore")
)
_validate = _ADAPTER.validator.validate_python
"""Calling the validator through the adapter's method takes a sixth longer."""

Upcaster: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

VERSIONS: dict[str, int] = {
    kind.__name__: get_args(get_type_hints(kind)["v"])[0] for kind in get_args(Event)
}
"""The current version of each event type."""

_TURN_EVENTS: Final = {kind.__name__ for kind in get_args(TurnEvent)}

UPCASTERS: dict[tuple[str, int], Upcaster] = {}
"""(event type, version) -> function from the JSON object of this version to the next one's."""


def upcast(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object of an event in the current version."""
    while (step := _next_step(raw.get("e"), raw.get("v", 1))) is not None:
        raw = step(raw)
    return raw


def _next_step(kind: Any, version: Any) -> Upcaster | None:
    try:
        return UPCASTERS.get((kind, version))
    except TypeError:  # a list or an object: neither a type nor a version
        return None


def parse_event(raw: dict[str, Any]) -> Event:
    """Return the event of a JSON object of the log, upcast and validated.

    Raises UnknownEvent for a type or version that this foldmq does not know, UnreadableEvent
    when a field is invalid.
    """
    try:
        event: Event = _validate(upcast(raw) if UPCASTERS else raw)
    except ValidationError as error:
        kind, version = raw.get("e"), raw.get("v", 1)
        if isinstance(kind, str) and kind in _TURN_EVENTS and version == 1:
            # Events of turns have been replaced by events of sessions, see ``records``.
            raise UnreadableEvent(f"event {kind}: its columns do not fit together") from None
        if not isinstance(kind, str) or kind not in VERSIONS or version != VERSIONS[kind]:
            raise UnknownEvent(
                f"event {_brief(kind)} version {_brief(version)} is not known to this foldmq: "
                "use the one that wrote the log, or a later one"
            ) from None
        first = error.errors(include_url=False, include_context=False)[0]
        where = ".".join(str(part) for part in first["loc"][1:])
        raise UnreadableEvent(
            f"event {kind}: field {where} is missing"
            if first["type"] == "missing"
            else f"event {kind}, field {where} = {_brief(first['input'])}: not a valid value"
        ) from None
    return event


def are_current(raw_events: Iterable[dict[str, Any]]) -> bool:
    """Return whether JSON objects of events have known types in their current versions."""
    try:
        return all(VERSIONS.get(raw.get("e", "")) == raw.get("v", 1) for raw in raw_events)
    except TypeError:  # a list or an object: not a type
        return False


def _brief(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of an event in the log."""
    adapter: TypeAdapter[LogEvent] = TypeAdapter(
        Annotated[LogEvent, Field(discriminator="e")], config=ConfigDict(extra="ignore")
    )
    return adapter.json_schema()


_COLUMNS: dict[type, str] = {
    events.Delivered: "refs",
    events.Queued: "refs",
    events.Released: "refs",
    events.InboundReplaced: "refs",
    events.Acked: "pids",
    events.Received: "pids",
    events.Completed: "pids",
    events.Refused: "pids",
    events.Returned: "pids",
    events.Expired: "refs",
    events.Assigned: "refs",
    events.Redelivered: "pids",
    destination_events.ForwardRefused: "refs",
}
"""Event type -> the column with one integer for each of its entries."""
_RUNS: dict[type, Callable[[Any], list[Run]]] = {
    kind: attrgetter(column) for kind, column in _COLUMNS.items()
}


def _count_pids(
    event: turn_events.TurnDelivered | turn_events.TurnAcked | turn_events.TurnReleased,
) -> int:
    return len(event.pids)


_ENTRIES: dict[type, Callable[[Any], int]] = {
    events.MessagePublished: attrgetter("count"),
    node_events.MessagesCarried: attrgetter("count"),
    node_events.RetainedSnapshot: attrgetter("count"),
    turn_events.TurnPublished: attrgetter("count"),
    turn_events.TurnDelivered: _count_pids,
    turn_events.TurnAcked: _count_pids,
    turn_events.TurnReleased: _count_pids,
}
"""Other event type with several entries -> how to count them."""


def entries(event: LogEvent) -> int:
    """Return the number of positions that an event occupies: one for each message, at least 1."""
    kind = type(event)
    runs = _RUNS.get(kind)
    if runs is not None:
        return count_runs(runs(event))
    counted = _ENTRIES.get(kind)
    return counted(event) if counted is not None else 1
