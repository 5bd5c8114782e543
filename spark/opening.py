"""Records opened only as far as is needed: their frame without their events."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import orjson

from eventstore.records import (
    HEADER_FROM,
    Record,
    check_record,
    decode_record,
    link_of,
    previous_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

_FRAME: Final = re.compile(
    rb'\{"node":("(?:[^"\\]|\\.)*"),"time":([0-9]+),"part":([0-9]+),"last":(true|false),"events":\['
)
"""How a header begins as foldmq writes it; another is read as any JSON."""


def frame_of(sequence: int, data: bytes) -> Record:
    """Return a record without its events; raises as ``decode_record``, but for the events."""
    body = check_record(sequence, data)
    found = _FRAME.match(data, HEADER_FROM, body)
    if found is None:
        return decode_record(sequence, data)
    node, time_ms, part, last = found.groups()
    return Record(
        sequence=sequence,
        link=link_of(data),
        previous=previous_of(data),
        node=orjson.loads(node),
        time_ms=int(time_ms),
        part=int(part),
        last=last == b"true",
        raw_events=[],
        payload=memoryview(b""),
    )


def opener(
    types: Iterable[str] | None, sessions: Iterable[str] | None
) -> Callable[[int, bytes], Record]:
    """Return what opens records of which only events of some types and sessions are wanted.

    Records in which none of their names occurs are opened without their events.
    """
    needed = [
        [orjson.dumps(name) for name in names] for names in (types, sessions) if names is not None
    ]
    if not needed:
        return decode_record

    def open_record(sequence: int, data: bytes) -> Record:
        for words in needed:
            if not any(word in data for word in words):
                return frame_of(sequence, data)
        return decode_record(sequence, data)

    return open_record
