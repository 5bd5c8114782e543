"""Writes docs/spark-columns.md: the columns of the tables that Spark reads, with their events.

python tools/columns_table.py          writes the page
python tools/columns_table.py --check  exits 1 if the page is not up to date
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from spark.tables.columns import GRAINS
from spark.tables.entry_columns import MAKERS
from spark.tables.event_groups import WITH_BLOCKS

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "spark-columns.md"

INTRODUCTION = """\
# Columns of the log in Spark

Written by `tools/columns_table.py` with the columns of `spark/tables/columns.py`; do not edit.

The option `rows` of the data source chooses one of three tables of the same log
([spark.md](spark.md#in-a-notebook)). A value that an event does not have is null. A *position* is
one number, `seq << 20 | index`, and a `ref` is the position of another entry: `ref` joins with
`position` of the same `node`. Times are in UTC.
"""

_MESSAGES: Final = "MessagePublished, MessagesCarried, RetainedSnapshot, WillArmed"
_TABLES: Final = {
    "entries": (
        "A row for each position. An event about 50 messages has 50 entries; any other event has\n"
        "one. The last column lists the types of events that have the column, if not all have it;\n"
        f"*messages* stands for {_MESSAGES}."
    ),
    "events": "A row for each event, as it was written.",
    "records": "A row for each record: each message of the JetStream stream.",
}
_MAX: Final = 9
"""Maximum types that are listed."""

_COMMON: Final[Mapping[str, str]] = {
    "node": "node that wrote the record",
    "seq": "stream sequence of the record",
    "time": "time of the record, at which its first event was decided",
    "time_ms": "the same as Unix time in milliseconds",
    "steady_ms": "the same without the jumps of the clock up to the record",
    "damage": "description of the damage; such a row has no other values but its location",
}

RECORD_MEANINGS: Final[Mapping[str, str]] = {
    **_COMMON,
    "link": "SHA-256 of the record, in hexadecimal: its checksum, and its name in the chain",
    "previous": "link of the record before it; zeros in the first record",
    "part": "number of earlier records of the same turn",
    "last": "whether the turn ends with this record",
    "void": "whether the record belongs to a turn that never finished: its events have no effect",
    "events": "number of events",
    "entries": "number of entries",
    "bytes": "stored bytes",
    "data": "the record as it is stored",
}

EVENT_MEANINGS: Final[Mapping[str, str]] = {
    **_COMMON,
    "index": "index of the event's first entry in its record",
    "position": "position of the first entry: `seq << 20 | index`",
    "entries": "number of entries",
    "type": "type of the event, see [events.md](contribute/events.md)",
    "version": "version of the event type, as this foldmq reads it",
    "session": "client identifier; null for events that belong to no session",
    "part": "number of earlier records of the same turn",
    "json": "the event as JSON",
    "payload": "its part of the payload area: its blocks of properties, then its payloads",
}

ENTRY_MEANINGS: Final[Mapping[str, str]] = {
    **_COMMON,
    "index": "index of the entry in its record",
    "position": "position of the entry: `seq << 20 | index`",
    "type": "type of the event, see [events.md](contribute/events.md)",
    "version": "version of the event type, as this foldmq reads it",
    "session": "client identifier; null for events that belong to no session",
    "entry": "number of the entry within its event, from 0",
    "entries": "number of entries of the event",
    "topic": "topic of the message",
    "filter": "topic filter of the subscription",
    "member": "member of the shared subscription",
    "qos": "QoS of the publication, the delivery or the will",
    "retain": "RETAIN flag",
    "packet_id": "packet identifier; null at QoS 0",
    "ref": "position of the message that the entry is about: joins with `position`",
    "size": "payload bytes of the message",
    "payload": "the payload",
    "block": (
        "all properties of MQTT 5 as stored in the log: "
        "[events.md](contribute/events.md#properties)"
    ),
    "expires_at": "Unix time in seconds (as steady_ms) at which the message expires",
    "content_type": "property Content Type",
    "response_topic": "property Response Topic",
    "correlation_data": "property Correlation Data",
    "payload_format": "property Payload Format Indicator; 1: the payload is UTF-8",
    "user_properties": "the user properties in order; a name may occur twice",
    "will": "whether the message was the will of its publisher",
    "waiting": "whether a repeated message still waits for its release (PUBREL)",
    "reason": "why a message was dropped, a connection ended, a log was cut or a login failed",
    "cause": "why it was sent again (`resumed` or `ack_wait`), opened or erased",
    "count": "number of dropped messages, or of equal requests to the web page",
    "queued": "messages taken from the queue, at the first entry; -1: it bypassed the queue",
    "queued_bytes": "payload bytes added to or taken from the queue, at the first entry",
    "refs": "positions of the dropped messages; empty if they were never recorded",
    "filters": "topic filters with the granted QoS; the QoS is null where none is granted",
    "topics": "topics that the event is about; of dropped messages without positions at most eight",
    "software": "version of foldmq that started",
    "resumed": "whether a session existed before the connection",
    "clean": "whether the session ends with its connection",
    "level": "protocol level: 3, 4 or 5",
    "keep_alive": "keep alive in seconds",
    "generation": "number of the connection within its session",
    "address": "address of the client",
    "user": "user name; empty for an anonymous client",
    "expiry": "session expiry in seconds, or its change at DISCONNECT",
    "delay": "will delay in seconds",
    "checkpoint": "position at which the checkpoint began",
    "begun": "position at which the completed checkpoint began",
    "sessions": "number of sessions in the checkpoint",
    "retained": "number of retained messages in the checkpoint",
    "state": "state of the session, as JSON",
    "limits": "the limits that apply from here on, as JSON",
    "part": "number of the part of a repeated session",
    "last": "whether no more parts follow",
    "first": "first record that remains after the cut",
    "link": "link of the last archived or cut record; of Followed that of the record in the other "
    "log",
    "begins_ms": "time of the first remaining record, Unix time in milliseconds",
    "through": "last archived record; of Bridged the position up to which messages are with NATS, "
    "of Followed the position in the other log up to which it was taken, of Forwarded the position "
    "up to which the destination has its messages",
    "log": "the other log, from which messages were taken",
    "to": "name of the destination of the outbox",
    "kind": "kind of the sink of a destination",
    "after": "position after which messages are due to a destination, or are lost to it",
    "until": "last position of a range that is not sent to a destination",
    "where": "directory of the archive",
    "action": "what the operator did",
    "by": "name of the operator or of the archiver, as given in the request",
    "target": "session or topic that it concerned",
    "outcome": "what happened at the web page: `login`, `refused`, `denied`, ...",
    "name": "name of the web token or user",
    "role": "role of the web token",
    "expires": "end of a web token that was added or removed",
    "first_ms": "time of the first of several equal requests, Unix time in milliseconds",
    "properties": "user properties of CONNECT, as JSON; null for messages, see `block`",
    "json": "the event as JSON, for this entry alone",
}

MEANINGS: Final[Mapping[str, Mapping[str, str]]] = {
    "entries": ENTRY_MEANINGS,
    "events": EVENT_MEANINGS,
    "records": RECORD_MEANINGS,
}
"""Table -> column -> meaning."""


def _owners(column: str) -> str:
    """Return the types of events that have a column of entries."""
    found = {kind for kind, makers in MAKERS.items() if column in makers}
    if column == "payload":
        found = {*WITH_BLOCKS}
    if len(found) > _MAX:
        return "all events of a session"
    names = ", ".join(sorted(found))
    return "messages" if names == _MESSAGES else names


def _is_known(table: str, name: str) -> bool:
    """Return whether a column is also one of entries, with the same type and meaning."""
    return (
        name in GRAINS["entries"]
        and GRAINS[table][name] == GRAINS["entries"][name]
        and MEANINGS[table][name] == MEANINGS["entries"][name]
    )


def page() -> str:
    """Return the text of docs/spark-columns.md."""
    parts = [INTRODUCTION]
    for table, columns in GRAINS.items():
        named = table == "entries"
        parts.append(f"\n## {table}\n\n{_TABLES[table]}\n\n")
        known = [] if named else [name for name in columns if _is_known(table, name)]
        if known:
            parts.append(f"As above: {', '.join(f'`{name}`' for name in known)}.\n\n")
        parts.append("| column | type | meaning |" + (" events |\n" if named else "\n"))
        parts.append("|---|---|---|" + ("---|\n" if named else "\n"))
        for name, kind in columns.items():
            if name in known:
                continue
            meaning = MEANINGS[table][name].replace("|", "\\|")
            row = f"| `{name}` | {kind} | {meaning} |"
            parts.append(row + (f" {_owners(name)} |\n" if named else "\n"))
    return "".join(parts)


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit code is 1 if it is not up to date."""
    text = page()
    if "--check" in arguments:
        current = PAGE.read_text("utf-8") if PAGE.exists() else ""
        if current != text:
            sys.stderr.write("docs/spark-columns.md: run python tools/columns_table.py\n")
            return 1
        return 0
    PAGE.write_text(text, "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
