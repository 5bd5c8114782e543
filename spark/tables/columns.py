"""The columns of the tables of a log, with their types in Spark.

A log can be read by record, by event or by entry: a row for each position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Final

from spark.runtime.marked_errors import BadOption

RECORDS: Final[Mapping[str, str]] = {
    "node": "string",
    "seq": "bigint",
    "time": "timestamp",
    "time_ms": "bigint",
    "steady_ms": "bigint",
    "link": "string",
    "previous": "string",
    "part": "int",
    "last": "boolean",
    "void": "boolean",
    "events": "int",
    "entries": "int",
    "bytes": "int",
    "data": "binary",
    "damage": "string",
}
"""A row for each record."""

EVENTS: Final[Mapping[str, str]] = {
    "node": "string",
    "seq": "bigint",
    "index": "int",
    "position": "bigint",
    "entries": "int",
    "time": "timestamp",
    "time_ms": "bigint",
    "steady_ms": "bigint",
    "type": "string",
    "version": "int",
    "session": "string",
    "part": "int",
    "json": "string",
    "payload": "binary",
    "damage": "string",
}
"""A row for each event as it was written."""

ENTRIES: Final[Mapping[str, str]] = {
    "node": "string",
    "seq": "bigint",
    "index": "int",
    "position": "bigint",
    "time": "timestamp",
    "time_ms": "bigint",
    "steady_ms": "bigint",
    "type": "string",
    "version": "int",
    "session": "string",
    "entry": "int",
    "entries": "int",
    "topic": "string",
    "filter": "string",
    "member": "string",
    "qos": "int",
    "retain": "boolean",
    "packet_id": "int",
    "ref": "bigint",
    "size": "int",
    "payload": "binary",
    "block": "binary",
    "expires_at": "bigint",
    "content_type": "string",
    "response_topic": "string",
    "correlation_data": "binary",
    "payload_format": "int",
    "user_properties": "array<struct<name:string,value:string>>",
    "will": "boolean",
    "waiting": "boolean",
    "reason": "string",
    "cause": "string",
    "count": "bigint",
    "queued": "bigint",
    "queued_bytes": "bigint",
    "refs": "array<bigint>",
    "filters": "array<struct<filter:string,qos:int>>",
    "topics": "array<string>",
    "software": "string",
    "resumed": "boolean",
    "clean": "boolean",
    "level": "int",
    "keep_alive": "int",
    "generation": "bigint",
    "address": "string",
    "user": "string",
    "expiry": "bigint",
    "delay": "bigint",
    "checkpoint": "bigint",
    "begun": "bigint",
    "sessions": "bigint",
    "retained": "bigint",
    "state": "string",
    "limits": "string",
    "part": "int",
    "last": "boolean",
    "first": "bigint",
    "link": "string",
    "begins_ms": "bigint",
    "through": "bigint",
    "log": "string",
    "to": "string",
    "kind": "string",
    "after": "bigint",
    "until": "bigint",
    "where": "string",
    "action": "string",
    "by": "string",
    "target": "string",
    "outcome": "string",
    "name": "string",
    "role": "string",
    "expires": "string",
    "first_ms": "bigint",
    "properties": "string",
    "json": "string",
    "damage": "string",
}
"""A row for each entry: an event about 50 messages has 50 of them."""

GRAINS: Final[Mapping[str, Mapping[str, str]]] = {
    "entries": ENTRIES,
    "events": EVENTS,
    "records": RECORDS,
}
"""Values of the option ``rows``, and the columns of each."""


@dataclass(frozen=True, slots=True)
class Columns:
    """The requested columns of one table, in order."""

    rows: str
    """``entries``, ``events`` or ``records``."""
    names: tuple[str, ...]

    @classmethod
    def of(cls, rows: str, names: Sequence[str] = ()) -> Columns:
        """Return the columns with these names, all if there are none; raises BadOption."""
        columns = GRAINS.get(rows)
        if columns is None:
            raise BadOption(f"rows = {rows!r}: expected one of {', '.join(GRAINS)}")
        wrong = [name for name in names if name not in columns]
        if wrong:
            close = get_close_matches(wrong[0], columns, 1)
            meant = f"did you mean {close[0]}?" if close else f"there are {', '.join(columns)}"
            raise BadOption(f"there is no column {wrong[0]!r} in rows={rows}: {meant}")
        if len(set(names)) < len(names):
            raise BadOption(f"a column is named twice in {', '.join(names)!r}")
        return cls(rows, tuple(names) or tuple(columns))

    @property
    def ddl(self) -> str:
        """The schema in the form that Spark reads."""
        columns = GRAINS[self.rows]
        return ", ".join(f"`{name}` {columns[name]}" for name in self.names)
