"""The columns of the tables that a log is read as, with their types.

A log can be read by the record, by the event or by the entry: a row for each position.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from spark.failures import BadOption

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_STRING, _BINARY, _BOOLEAN = pa.string(), pa.binary(), pa.bool_()
_INT, _BIGINT = pa.int32(), pa.int64()
_TIME = pa.timestamp("us", tz="UTC")
_FILTER = pa.struct([pa.field("filter", _STRING), pa.field("qos", _INT)])


def _array_of(kind: pa.DataType) -> pa.DataType:
    return pa.list_(pa.field("element", kind))  # the name by which Spark calls it


_DDL: Final[tuple[tuple[pa.DataType, str], ...]] = (
    (_STRING, "string"),
    (_BINARY, "binary"),
    (_BOOLEAN, "boolean"),
    (_INT, "int"),
    (_BIGINT, "bigint"),
    (_TIME, "timestamp"),
    (_array_of(_FILTER), "array<struct<filter:string,qos:int>>"),
    (_array_of(_STRING), "array<string>"),
    (_array_of(_BIGINT), "array<bigint>"),
)

RECORDS: Final[Mapping[str, pa.DataType]] = {
    "node": _STRING,
    "seq": _BIGINT,
    "time": _TIME,
    "time_ms": _BIGINT,
    "link": _STRING,
    "previous": _STRING,
    "part": _INT,
    "last": _BOOLEAN,
    "void": _BOOLEAN,
    "events": _INT,
    "entries": _INT,
    "bytes": _INT,
    "data": _BINARY,
    "damage": _STRING,
}
"""A row for each record."""

EVENTS: Final[Mapping[str, pa.DataType]] = {
    "node": _STRING,
    "seq": _BIGINT,
    "index": _INT,
    "position": _BIGINT,
    "entries": _INT,
    "time": _TIME,
    "time_ms": _BIGINT,
    "type": _STRING,
    "version": _INT,
    "session": _STRING,
    "part": _INT,
    "json": _STRING,
    "payload": _BINARY,
    "damage": _STRING,
}
"""A row for each event as it was written."""

ENTRIES: Final[Mapping[str, pa.DataType]] = {
    "node": _STRING,
    "seq": _BIGINT,
    "index": _INT,
    "position": _BIGINT,
    "time": _TIME,
    "time_ms": _BIGINT,
    "type": _STRING,
    "version": _INT,
    "session": _STRING,
    "entry": _INT,
    "entries": _INT,
    "topic": _STRING,
    "filter": _STRING,
    "qos": _INT,
    "retain": _BOOLEAN,
    "packet_id": _INT,
    "ref": _BIGINT,
    "size": _INT,
    "payload": _BINARY,
    "will": _BOOLEAN,
    "waiting": _BOOLEAN,
    "reason": _STRING,
    "cause": _STRING,
    "count": _BIGINT,
    "queued": _BIGINT,
    "queued_bytes": _BIGINT,
    "refs": _array_of(_BIGINT),
    "filters": _array_of(_FILTER),
    "topics": _array_of(_STRING),
    "software": _STRING,
    "resumed": _BOOLEAN,
    "clean": _BOOLEAN,
    "level": _INT,
    "keep_alive": _INT,
    "generation": _BIGINT,
    "address": _STRING,
    "user": _STRING,
    "expiry": _BIGINT,
    "delay": _BIGINT,
    "checkpoint": _BIGINT,
    "begun": _BIGINT,
    "sessions": _BIGINT,
    "retained": _BIGINT,
    "state": _STRING,
    "part": _INT,
    "last": _BOOLEAN,
    "first": _BIGINT,
    "link": _STRING,
    "begins_ms": _BIGINT,
    "through": _BIGINT,
    "where": _STRING,
    "action": _STRING,
    "by": _STRING,
    "target": _STRING,
    "properties": _STRING,
    "json": _STRING,
    "damage": _STRING,
}
"""A row for each entry: an event about 50 messages has 50 of them."""

GRAINS: Final[Mapping[str, Mapping[str, pa.DataType]]] = {
    "entries": ENTRIES,
    "events": EVENTS,
    "records": RECORDS,
}
"""What option ``rows`` may be, and the columns that there are then."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The columns that are asked for, in order, of one way to read a log."""

    rows: str
    """``entries``, ``events`` or ``records``."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, rows: str, names: Sequence[str] = ()) -> Columns:
        """Return the columns with these names, all there are without; raises BadOption."""
        known = GRAINS.get(rows)
        if known is None:
            raise BadOption(f"rows = {rows!r}: expected one of {', '.join(GRAINS)}")
        wrong = [name for name in names if name not in known]
        if wrong:
            raise BadOption(
                f"there is no column {wrong[0]!r} in rows={rows}: there are {', '.join(known)}"
            )
        if len(set(names)) < len(names):
            raise BadOption(f"a column is named twice in {', '.join(names)!r}")
        return cls(rows, tuple(names) or tuple(known))

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema of the rows."""
        known = GRAINS[self.rows]
        return pa.schema([(name, known[name]) for name in self.names])

    @property
    def ddl(self) -> str:
        """The schema as Spark reads it."""
        words = dict(_DDL)
        known = GRAINS[self.rows]
        return ", ".join(f"`{name}` {words[known[name]]}" for name in self.names)
