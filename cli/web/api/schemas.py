"""The JSON Schema of answers: models of views, and of what commands print with ``--json``.

The names in JSON are those of :func:`projections.views.vocabulary.json_object`, so the model of a
view is derived from it. Models are never instantiated: an answer is made by the view or command.
"""

import dataclasses
import sys
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, create_model

from eventstore.format.positions import Position
from projections.views.session_view import SessionView
from projections.views.state_view import RetainedView
from projections.views.vocabulary import json_name


class Model(BaseModel):
    """An object; it may have further members, which later versions add."""

    model_config = ConfigDict(extra="allow")


_NAMES: dict[str, Any] = {
    "Mapping": Mapping,
    "Sequence": Sequence,
    "Position": Position,
    "Any": Any,
}
"""Names in the views' annotations that they import for type checkers only."""
_MODELS: dict[object, type[Model]] = {}
_TEXT_POSITIONS = ("position", "ref")


def model_of(view: Any) -> type[Model]:
    """Return the model of a view, a dataclass: the object that it is in JSON."""
    cached = _MODELS.get(view)
    if cached is not None:
        return cached
    origin, rows = typing.get_origin(view) or view, typing.get_args(view)
    hints = typing.get_type_hints(origin, localns=_NAMES | vars(sys.modules[origin.__module__]))
    members: dict[str, Any] = {}
    for field in dataclasses.fields(origin):
        if field.name == "live":
            continue
        kind = hints[field.name]
        if rows and field.name == "rows":
            kind = types.GenericAlias(Sequence, rows)
        name = json_name(field.name)
        if name != field.name:
            kind = str if kind is int else str | None
        else:
            kind = str if field.name in _TEXT_POSITIONS else _in_json(kind)
        members[name] = (kind, ...)
    title = origin.__name__ + "".join(getattr(row, "__name__", "") for row in rows)
    model = create_model(title, __base__=Model, __doc__=_line(origin.__doc__), **members)
    _MODELS[view] = model
    return model


def _line(doc: str | None) -> str:
    return (doc or "").partition("\n")[0]


def _in_json(kind: Any) -> Any:
    """Return a type with the models of the views in it."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(origin or kind):
        return model_of(kind)
    if origin in (types.UnionType, typing.Union):
        return typing.Union[tuple(map(_in_json, arguments))]  # noqa: UP007 - of a tuple
    if origin is not None and issubclass(origin, Sequence):
        return types.GenericAlias(list, (_in_json(arguments[0]),))
    if origin is not None and issubclass(origin, Mapping):
        return dict[str, Any]
    return kind


class StatusObject(Model):
    """The status of a broker, or of the brokers of all logs."""

    ready: bool = Field(description="Whether it serves clients; of several logs, whether all do.")


class SummaryObject(StatusObject):
    """Figures of the broker, added up over all logs."""

    subscriptions: int
    connections: dict[str, Any]
    sessions: dict[str, Any]
    census: dict[str, Any] = Field(description="Messages in flight and queued, for all sessions.")
    messages: dict[str, list[int]] = Field(description="Messages in and out, by QoS.")
    dropped: dict[str, int] = Field(description="Dropped messages, by reason.")
    retained: dict[str, Any]
    process: dict[str, Any]


class ProblemObject(Model):
    """A problem of the broker or of a client."""

    severity: str = Field(description="problem, warning or notice")
    subject: str
    title: str
    evidence: str
    cause: str
    next: str = Field(description="The next command.")


class SessionRow(Model):
    """A session in a list."""

    session: str = Field(description="The client identifier.")
    connected: bool
    clean: bool
    subscriptions: int
    in_flight: int
    queued: int
    queued_bytes: int
    user: str | None
    closed_at: str | None
    expires_at: str | None
    log: str | None = None


class ReceiversObject(Model):
    """What would happen to a message on a topic."""

    topic: str
    qos: int
    retained: dict[str, Any] | None
    subscriptions: list[dict[str, Any]] = Field(
        description="For each subscription: client, filter, qos, why (sent, queued, dropped, "
        "denied ...) and reason. As of a moment: client, filter, qos, connected and user."
    )


class RetainedObject(model_of(RetainedView)):  # type: ignore[misc]
    """A retained message; its payload only for callers who may see it."""

    payload: str | None = Field(default=None, description="The payload, if it is UTF-8.")
    payload_base64: str | None = Field(default=None, description="Any other payload.")


class SessionObject(model_of(SessionView)):  # type: ignore[misc]
    """A session in full; as of now with more that only the running broker knows."""


class StateRow(Model):
    """The totals of a state, then each session, and each retained message."""

    kind: str = Field(description="state, session or retained")


class DiffObject(Model):
    """The differences between two states of a log."""

    from_: dict[str, Any] = Field(alias="from")
    to: dict[str, Any]
    entries: int
    sessions_added: list[str]
    sessions_removed: list[str]
    sessions_changed: dict[str, dict[str, Any]]
    retained: dict[str, list[str]]


class StoryObject(Model):
    """What happened to a message."""

    position: str
    time: str | None
    topic: str | None
    qos: int | None
    size: int | None
    session: str | None = Field(description="The session that published it.")
    steps: list[dict[str, Any]]
    copies: list[dict[str, Any]] = Field(description="Its deliveries, and what became of each.")
    standing: dict[str, Any] | str | None = Field(
        default=None, description="Why the receiver that was asked about got it, or did not."
    )


class EventObject(Model):
    """An event of the log; its further members depend on the type."""

    position: str
    time: str
    type: str
    session: str | None = None


class PublicationObject(Model):
    """A message that took effect."""

    position: str = Field(description="Where it took effect; as from, it goes on after it.")
    at: str = Field(description="When it took effect.")
    topic: str
    qos: int
    retain: bool = Field(description="Whether it was published with RETAIN 1.")
    publisher: str = Field(description="The session that published it.")
    size: int = Field(description="Size of the payload in bytes.")
    payload: str | None = Field(default=None, description="The payload, if it is UTF-8.")
    payload_base64: str | None = Field(default=None, description="Any other payload.")
