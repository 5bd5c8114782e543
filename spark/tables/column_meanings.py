"""The meanings of the columns of the tables, for ``docs/spark-columns.md``."""

from collections.abc import Mapping
from typing import Final

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
