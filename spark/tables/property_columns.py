"""The properties of messages (MQTT 5) as columns of rows=entries.

Each distinct block is parsed once, and its values are brought to the entries by ``take``. A block
that cannot be read has nulls in the columns of its properties.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from eventstore.format.stored_properties import expires_at, expiries_of
from protocol.errors import FoldmqError
from protocol.mqtt.message_properties import (
    MessageProperties,
    decode_message_properties,
)
from spark.tables.arrays import of_lists, of_numbers, of_texts
from spark.tables.arrow_types import ENTRIES
from spark.tables.event_groups import EventGroup
from spark.tables.integer_columns import Integers, sums_before
from spark.tables.turn_groups import TurnGroup

if TYPE_CHECKING:
    from collections.abc import Sequence

    from eventstore.format.records import Record

PROPERTIES: Final = (
    "content_type", "response_topic", "correlation_data", "payload_format", "user_properties",
)  # fmt: skip
"""The columns of properties by name."""
_KNOWN_BLOCKS: Final = 4096


class EntryProperties(NamedTuple):
    """The properties of the entries of a group."""

    blocks: list[bytes]
    """The distinct blocks."""
    which: Integers
    """For each entry the index of its block, -1: none."""
    expires: Integers
    """For each entry the Unix time in seconds at which its message expires, 0: never."""


def entry_properties(group: EventGroup, records: Sequence[Record]) -> EntryProperties:
    """Return the properties of each entry; ``records`` are those that contain the events."""
    numbers: dict[bytes, int] = {}
    which = np.full(group.total, -1, np.int64)
    expires = np.zeros(group.total, np.int64)
    firsts = sums_before(group.counts)
    for place, raw in group.added:
        first, count = int(firsts[place]), int(group.counts[place])
        record = records[place]
        if raw.get("expires"):
            expires[first : first + count] = expiries_of(raw["expires"], count)
        if not raw.get("blocks"):
            continue
        blocks = _blocks_of(raw, record)
        known = np.array([-1, *(numbers.setdefault(one, len(numbers)) for one in blocks)])
        of = np.array(raw.get("block_of") or [1] * count)
        which[first : first + count] = known[of]
        if group.kind == "MessagePublished":
            times = np.array([0, *(expires_at(one, record.steady_ms) for one in blocks)])
            expires[first : first + count] = times[of]
    return EntryProperties([*numbers], which, expires)


def turn_properties(group: TurnGroup, records: Sequence[Record]) -> EntryProperties:
    """Return the properties of each entry; ``records`` are those that contain the events."""
    found = group.blocks()
    if found is None:
        nothing = np.full(group.total, -1, np.int64)
        return EntryProperties([], nothing, np.zeros(group.total, np.int64))
    owners = dict(zip(group.owners.tolist(), records, strict=True))
    numbers: dict[bytes, int] = {}
    known: list[int] = []
    times: list[int] = []
    places = zip(found.begins.tolist(), found.sizes.tolist(), found.events.tolist(), strict=True)
    for begin, size, event in places:
        record = owners.get(event)
        block = b"" if record is None else bytes(record.payload[begin : begin + size])
        known.append(numbers.setdefault(block, len(numbers)))
        times.append(0 if record is None else expires_at(block, record.steady_ms))
    which = np.array([*known, -1])[found.which]
    return EntryProperties([*numbers], which, np.array([*times, 0])[found.which])


def _blocks_of(raw: dict[str, Any], record: Record) -> list[bytes]:
    """Return the distinct blocks of an event."""
    sizes = raw["blocks"]
    begins = raw.get("blocks_at") or [*accumulate(sizes, initial=raw["at"] - sum(sizes))]
    area = record.payload
    return [bytes(area[begin : begin + size]) for begin, size in zip(begins, sizes, strict=False)]


@lru_cache(_KNOWN_BLOCKS)
def _read(block: bytes) -> MessageProperties | None:
    try:
        return decode_message_properties(block)
    except (FoldmqError, ValueError, IndexError):
        return None


def block_array(blocks: Sequence[bytes]) -> pa.Array:
    """Return blocks as binary values."""
    return _binary(blocks)


def property_array(name: str, blocks: Sequence[bytes]) -> tuple[pa.Array, np.ndarray[Any, Any]]:
    """Return the values of some blocks for a column, and which blocks have one."""
    found = [_read(block) for block in blocks]
    values = [None if one is None else _VALUES[name](one) for one in found]
    valid = np.array([value is not None for value in values], np.bool_)
    if name == "payload_format":
        return of_numbers(np.array([one or 0 for one in values], np.int32), pa.int32()), valid
    if name == "user_properties":
        return _pairs([one or () for one in values]), valid
    encoded = [one.encode() if isinstance(one, str) else one or b"" for one in values]
    return (_binary if name == "correlation_data" else of_texts)(encoded), valid


_VALUES: Final[dict[str, Any]] = {
    "content_type": lambda one: one.content_type,
    "response_topic": lambda one: one.response_topic,
    "correlation_data": lambda one: one.correlation,
    "payload_format": lambda one: one.payload_format or None,
    "user_properties": lambda one: one.user or None,
}


def _binary(values: Sequence[bytes]) -> pa.Array:
    texts = of_texts(values)
    return pa.Array.from_buffers(pa.binary(), len(texts), texts.buffers())


def _pairs(values: Sequence[Sequence[tuple[str, str]]]) -> pa.Array:
    kind = ENTRIES["user_properties"]
    flat = [pair for some in values for pair in some]
    children = [of_texts(pair[at].encode() for pair in flat) for at in (0, 1)]
    pairs = pa.Array.from_buffers(kind.value_type, len(flat), [None], children=children)
    return of_lists(np.fromiter(map(len, values), np.int64, len(values)), pairs, kind)
