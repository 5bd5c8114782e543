"""The events of a record, decoded into objects whose fields have the types that they must have.

The types of these objects follow from ``eventstore.events``. They take only what is written as
today's foldmq writes it, and are made and checked in one go, several times as fast as a dictionary
each. What does not fit is for ``parse_event``, which knows defaults and older versions, and says
what is wrong. JSON within an event (properties, the state of a snapshot) stays text.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Any,
    Final,
    TypeAlias,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from eventstore.events import VERSIONS, Event
from eventstore.records import HEADER_FROM
from spark.runs import Misfit

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.records import Record

Text: TypeAlias = "bytes | msgspec.Raw"
"""JSON: bytes, or a part of bytes."""

_NULL: Final = msgspec.Raw(b"null")
_EVENTS: Final = b',"events":['
_BETWEEN: Final = [(b',"v":%d}' % version, b'{"') for version in sorted({*VERSIONS.values()})]
"""How events end and begin as foldmq writes them."""


def _struct_of(kind: type) -> type[msgspec.Struct]:
    """Return the type of the objects that stand for events of a type."""
    hints = get_type_hints(kind)
    members: list[Any] = []
    for field in fields(kind):
        if field.name == "e":
            continue
        hint = _as_text(hints[field.name])
        if field.name == "v" or (field.default is MISSING and field.default_factory is MISSING):
            members.append((field.name, hint))
        elif hint is msgspec.Raw:
            members.append((field.name, hint, _NULL))
        elif field.default_factory is not MISSING:
            members.append((field.name, hint, msgspec.field(default_factory=field.default_factory)))
        else:
            members.append((field.name, hint, field.default))
    return msgspec.defstruct(
        kind.__name__, members, tag_field="e", tag=kind.__name__, kw_only=True, gc=False
    )


def _as_text(hint: Any) -> Any:
    """Return a type with JSON objects in it left as they are written."""
    if get_origin(hint) is dict:
        return msgspec.Raw
    arguments = get_args(hint)
    if isinstance(hint, UnionType) or get_origin(hint) is Union:
        if any(get_origin(one) is dict for one in arguments):
            return msgspec.Raw
        return Union[tuple(_as_text(one) for one in arguments)]  # noqa: UP007 - made at run time
    if get_origin(hint) is list:
        return list[_as_text(arguments[0])]  # type: ignore[misc] # made at run time
    return hint


STRUCTS: Final = {kind.__name__: _struct_of(kind) for kind in get_args(Event)}
"""Event type -> the type of the objects that stand for its events."""

_Header = msgspec.defstruct("_Header", [("events", list[Union[tuple(STRUCTS.values())]])])  # type: ignore[misc] # noqa: UP007
_Texts = msgspec.defstruct("_Texts", [("events", list[msgspec.Raw])])
_decode_events = msgspec.json.Decoder(_Header).decode
_decode_texts = msgspec.json.Decoder(_Texts).decode


def header_of(record: Record) -> bytes:
    """Return the JSON header of a record; its payload area is a view of the record's bytes."""
    data = cast("bytes", record.payload.obj)
    return data[HEADER_FROM : len(data) - len(record.payload)]


def events_of(record: Record) -> Sequence[Any]:
    """Return the events of a record; raise Misfit when one is not written as usual."""
    try:
        return cast("Any", _decode_events(header_of(record))).events  # type: ignore[no-any-return]
    except msgspec.DecodeError as error:
        raise Misfit(str(error)) from None


def texts_of(record: Record, count: int) -> Sequence[Text]:
    """Return the JSON of each of so many events of a record, which have been decoded."""
    lines = lines_of(record, count)
    if lines is not None:
        return lines.split(b"\n") if count else []
    return cast("Any", _decode_texts(header_of(record))).events  # type: ignore[no-any-return]


def lines_of(record: Record, count: int) -> bytes | None:
    """Return the JSON of each of so many events, with a newline between them.

    None: it is not written as foldmq writes it.
    """
    lines = header_of(record).partition(_EVENTS)[2].removesuffix(b"]}")
    # Within a string the quotes would be escaped, so where this is, an object ends and one begins.
    for between in _BETWEEN:
        lines = lines.replace(b",".join(between), b"\n".join(between))
    fits = lines.count(b"\n") == max(count - 1, 0) and lines.count(b'"e":"') == count
    return lines if fits else None
