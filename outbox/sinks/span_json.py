"""Spans in the JSON encoding of OTLP, and the context that messages carry (W3C, MQTT binding)."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from protocol.mqtt.message_properties import properties_object

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERVER, PRODUCER = 2, 4
"""Kinds of spans."""
_ERROR = 2
"""Status code of a failure."""
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


class Context(NamedTuple):
    """The span of a publisher, as its message names it."""

    trace_id: str
    span_id: str
    sampled: bool
    state: str


def context_of(block: bytes) -> Context | None:
    """Return the context in the properties of a message; None if there is no valid one."""
    if b"traceparent" not in block:
        return None
    user = dict(properties_object(block).get("user_properties", ()))
    parts = _TRACEPARENT.match(user.get("traceparent", ""))
    if parts is None or not int(parts[1], 16) or not int(parts[2], 16):
        return None
    sampled = bool(int(parts[3], 16) & 1)
    return Context(parts[1], parts[2], sampled, user.get("tracestate", ""))


def span_object(
    name: str,
    kind: int,
    ids: Sequence[str],
    times: tuple[int, int],
    about: Mapping[str, bool | int | str],
    error: str = "",
) -> dict[str, Any]:
    """Return a span; ``ids`` are those of its trace, of itself and of its parent or "".

    ``times`` are start and end in nanoseconds of Unix time; integers are strings in OTLP.
    """
    start, end = times
    span: dict[str, Any] = {
        "traceId": ids[0],
        "spanId": ids[1],
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(max(start, end)),
        "attributes": [attribute(key, value) for key, value in about.items()],
    }
    if ids[2]:
        span["parentSpanId"] = ids[2]
    if error:
        span["attributes"].append(attribute("error.type", error))
        span["status"] = {"code": _ERROR, "message": error}
    return span


def attribute(key: str, value: bool | int | str) -> dict[str, Any]:
    """Return an attribute."""
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    return {"key": key, "value": {"stringValue": value}}


def span_event(name: str, time_ns: int) -> dict[str, Any]:
    """Return an event of a span."""
    return {"timeUnixNano": str(time_ns), "name": name}


def nanoseconds(stored: str) -> int:
    """Return a time of JetStream in nanoseconds of Unix time; 0 if it is not known."""
    if not stored:
        return 0
    return (datetime.fromisoformat(stored) - _EPOCH) // timedelta(microseconds=1) * 1000
