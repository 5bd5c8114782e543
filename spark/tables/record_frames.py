"""Decodes records only as far as needed: their frame without their events."""

import re
from collections.abc import Callable, Iterable
from typing import Final

import orjson

from eventstore.format.records import (
    NO_JUMPS,
    ClockJumps,
    Record,
    decode_record,
    link_of,
    mentions,
    open_record,
    previous_of,
)
from eventstore.format.turn_events import SINGLE_EVENT_OF

_FRAME: Final = re.compile(
    rb'\{"node":("(?:[^"\\]|\\.)*"),"time":([0-9]+),"part":([0-9]+),"last":(true|false),'
    rb'(?:"jumps":\[(-?[0-9]+),([0-9]+)\],)?"events":\['
)
"""The beginning of a header as foldmq writes it; other forms are parsed as JSON."""


def frame_of(sequence: int, data: bytes) -> Record:
    """Return a record without its events; raises as ``decode_record``, except for the events."""
    header, payload = open_record(sequence, data)
    frame = _FRAME.match(header)
    if frame is None:
        return decode_record(sequence, data)
    node, time_ms, part, last, total_ms, record = frame.groups()
    return Record(
        sequence=sequence,
        link=link_of(data),
        previous=previous_of(data),
        node=orjson.loads(node),
        time_ms=int(time_ms),
        part=int(part),
        last=last == b"true",
        raw_events=[],
        payload=payload,
        header=header,
        jumps=NO_JUMPS if record is None else ClockJumps(int(total_ms), int(record)),
    )


def mentioning(
    types: Iterable[str] | None, sessions: Iterable[str] | None
) -> Callable[[bytes], bool] | None:
    """Return a test of whether a record's bytes may contain events of some types and sessions.

    None: any record may.
    """
    if types is not None:
        types = {*types} | {SINGLE_EVENT_OF[name] for name in types if name in SINGLE_EVENT_OF}
    needed = [
        [orjson.dumps(name) for name in names] for names in (types, sessions) if names is not None
    ]
    if not needed:
        return None
    return lambda data: all(mentions(data, words) for words in needed)


def record_opener(
    types: Iterable[str] | None, sessions: Iterable[str] | None, *, whole_turns: bool = False
) -> Callable[[int, bytes], Record]:
    """Return a decoder for records if only events of some types and sessions are wanted.

    Records that contain none of their names are decoded without their events.
    """
    may_concern = mentioning(types, sessions)

    def opened(sequence: int, data: bytes) -> Record:
        whole = may_concern is None or may_concern(data)
        if not whole:
            return frame_of(sequence, data)
        return decode_record(sequence, data, whole_turns=whole_turns)

    return opened
