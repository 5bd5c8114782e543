"""Spans in the JSON encoding of OTLP, and the context that messages carry (W3C, MQTT binding)."""

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Any, Final, NamedTuple

import orjson

from outbox.selection import LONG, TextCache
from protocol.mqtt.message_properties import properties_object

SERVER, PRODUCER = 2, 4
"""Kinds of spans."""
_ERROR = 2
"""Status code of a failure."""
_TRACEPARENT: Final = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})")
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_KNOWN: Final = 8192
"""Attributes that are encoded once."""
_NAMES: Final = TextCache(orjson.dumps)


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


def span_json(
    name: str,
    kind: int,
    ids: Sequence[str],
    times: tuple[int, int],
    about: bytes,
    error: str = "",
    events: Sequence[bytes] = (),
) -> bytes:
    """Return a span without its last brace; ``ids``: of its trace, of itself, of its parent or "".

    ``times`` are start and end in nanoseconds of Unix time; integers are strings in OTLP. ``about``
    are attributes, and ``events`` events, as JSON.
    """
    start, end = times
    status = b""
    if error:
        about = b"%b,%b" % (about, attribute_json("error.type", error))
        status = b',"status":{"code":%d,"message":%b}' % (_ERROR, orjson.dumps(error))
    span = (
        b'{"traceId":"%b","spanId":"%b","name":%b,"kind":%d,'
        b'"startTimeUnixNano":"%d","endTimeUnixNano":"%d","attributes":[%b]%b%b'
    ) % (
        *(ids[0].encode(), ids[1].encode(), _NAMES[name], kind),
        *(start, max(start, end), about),
        b',"parentSpanId":"%b"' % ids[2].encode() if ids[2] else b"",
        status,
    )
    return b'%b,"events":[%b]' % (span, b",".join(events)) if events else span


def attribute_json(key: str, value: bool | int | str) -> bytes:
    """Return an attribute whose value probably comes again."""
    if isinstance(value, str) and len(value) >= LONG:
        return orjson.dumps(attribute(key, value))
    return _known_attribute(key, value)


@lru_cache(_KNOWN, typed=True)
def _known_attribute(key: str, value: bool | int | str) -> bytes:
    return orjson.dumps(attribute(key, value))


def attribute(key: str, value: bool | int | str) -> dict[str, Any]:
    """Return an attribute."""
    if isinstance(value, bool):
        return {"key": key, "value": {"boolValue": value}}
    if isinstance(value, int):
        return {"key": key, "value": {"intValue": str(value)}}
    return {"key": key, "value": {"stringValue": value}}


def span_event(name: str, time_ns: int) -> bytes:
    """Return an event of a span; its name needs no escapes."""
    return b'{"timeUnixNano":"%d","name":"%b"}' % (time_ns, name.encode())


def nanoseconds(stored: str) -> int:
    """Return a time of JetStream in nanoseconds of Unix time; 0 if it is not known."""
    if not stored:
        return 0
    return (datetime.fromisoformat(stored) - _EPOCH) // timedelta(microseconds=1) * 1000
