"""The expected rows of a log, built one by one from eventstore's own events."""

from collections.abc import Iterable, Iterator
from dataclasses import Field, fields
from itertools import takewhile
from typing import Any

import orjson

from eventstore.format.destination_events import DestinationOpened, Forwarded, OriginTaken
from eventstore.format.erasure_events import ErasureRequested, KeysSnapshot, TopicsKeyed
from eventstore.format.event_json import json_object
from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import (
    Assigned,
    Delivered,
    Expired,
    MessageDropped,
    MessagePublished,
    Queued,
    ReplayReached,
    RetainedExpired,
    SessionClosed,
    Subscribed,
    SubscriptionDenied,
    Unsubscribed,
    WillArmed,
)
from eventstore.format.node_events import (
    MessagesCarried,
    OperatorActed,
    RetainedCleared,
    RetainedSnapshot,
    WebAccessed,
)
from eventstore.format.positions import from_runs, position
from eventstore.format.records import Record, payload_bounds
from eventstore.format.stored_properties import expiries_of
from eventstore.log.message_store import properties_of
from protocol.mqtt.message_properties import decode_message_properties
from protocol.mqtt.protocol_error import ProtocolError
from spark.tables.columns import ENTRIES

MESSAGES = (MessagePublished, MessagesCarried, RetainedSnapshot)
WITHOUT_REF = MessageDropped, DestinationOpened, Forwarded, OriginTaken, OperatorActed
"""Their positions are not those of their entries."""
AS_THEY_ARE = set(ENTRIES) - {
    "topic",
    "size",
    "qos",
    "count",
    "topics",
    "filters",
    "refs",
    "queued",
}


def entry_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The rows of rows=entries, without the columns that are null."""
    return [row for record in records for row in _of_record(record)]


def _of_record(record: Record) -> Iterator[dict[str, Any]]:
    for index, event in record.events():
        count = entries(event)
        for number in range(count):
            row = {
                "node": record.node,
                "seq": record.sequence,
                "index": index + number,
                "position": position(record.sequence, index + number),
                "time_ms": record.time_ms,
                "steady_ms": record.steady_ms,
                "type": event.e,
                "version": event.v,
                "entry": number,
                "entries": count,
                **_cells(event, number, record),
            }
            yield {name: value for name, value in row.items() if value is not None}


def usual_fields(event: Event | type[Event]) -> list[Field[Any]]:
    """The fields that were not added later: those behind the version have no columns yet."""
    return list(takewhile(lambda field: field.name != "e", fields(event)))


def _cells(  # noqa: C901 - a branch for each type of event
    event: Event, number: int, record: Record
) -> dict[str, Any]:
    cells: dict[str, Any] = {}
    for field in usual_fields(event):
        value = getattr(event, field.name)
        if field.name in AS_THEY_ARE and not isinstance(value, list):
            cells[field.name] = orjson.dumps(value).decode() if isinstance(value, dict) else value
    for name, column in (("pids", "packet_id"), ("refs", "ref")):
        values = from_runs(getattr(event, name, []))
        if values and not isinstance(event, WITHOUT_REF):
            cells[column] = values[number]
    qos = getattr(event, "qos", None)
    cells["qos"] = qos[number] if isinstance(qos, list) else qos
    if isinstance(event, MESSAGES):
        cells |= _message(event, number, record)
    elif isinstance(event, WillArmed):
        cells |= {"topic": event.topic, "size": event.size}
        cells["payload"] = bytes(record.payload[event.at : event.at + event.size])
        begin = event.at - sum(event.blocks)
        cells |= _properties(bytes(record.payload[begin : event.at]))
    elif isinstance(event, MessageDropped):
        cells |= {"count": event.count, "refs": from_runs(event.refs), "queued": event.queued}
        cells["topics"] = event.topics or None
    elif isinstance(event, (Assigned, Delivered)):
        cells["queued"] = event.queued if number == 0 else min(event.queued, 0)
    elif isinstance(event, (Expired, Queued)):
        cells["queued_bytes"] = event.size if number == 0 else 0
    elif isinstance(event, Subscribed):
        cells["filters"] = [{"filter": name, "qos": qos} for name, qos in event.filters]
    elif isinstance(event, Unsubscribed | SubscriptionDenied | DestinationOpened):
        cells["filters"] = [{"filter": name, "qos": None} for name in event.filters]
    elif isinstance(
        event,
        (RetainedCleared, RetainedExpired, TopicsKeyed, KeysSnapshot, ErasureRequested),
    ):
        cells["topics"] = event.topics
    elif isinstance(event, SessionClosed):
        cells["expiry"] = event.expiry
    elif isinstance(event, ReplayReached):
        del cells["through"]  # a position for each log
    elif isinstance(event, WebAccessed):
        cells["count"] = event.count
    if isinstance(event, Queued) and (ends := expiries_of(event.expires, entries(event))):
        cells["expires_at"] = ends[number] or None
    return cells


def _message(
    event: MessagePublished | MessagesCarried | RetainedSnapshot, number: int, record: Record
) -> dict[str, Any]:
    bounds = payload_bounds(event)
    begin, end = bounds[number], bounds[number + 1]
    cells: dict[str, Any] = {
        "size": end - begin,
        "payload": bytes(record.payload[begin:end]),
    }
    blocks, expires = properties_of(record, event)
    if blocks:
        cells |= _properties(blocks[number])
        cells["expires_at"] = (expires[number] or None) if expires else None
    if isinstance(event, RetainedSnapshot):
        return {**cells, "topic": event.topics[number]}
    cells["topic"] = event.topics[event.which[number] if event.which else 0]
    if isinstance(event, MessagesCarried):
        cells["waiting"] = cells_ref(event, number) in from_runs(event.waiting)
    elif event.properties is not None and event.properties[number] is not None:
        cells["properties"] = orjson.dumps(event.properties[number]).decode()
    return cells


def _properties(block: bytes) -> dict[str, Any]:
    if not block:
        return {}
    try:
        found = decode_message_properties(block)
    except ProtocolError:
        return {"block": block}
    return {
        "block": block,
        "content_type": found.content_type,
        "response_topic": found.response_topic,
        "correlation_data": found.correlation,
        "payload_format": found.payload_format or None,
        "user_properties": [{"name": name, "value": value} for name, value in found.user] or None,
    }


def cells_ref(event: MessagesCarried, number: int) -> int:
    return from_runs(event.refs)[number]


def event_rows(records: Iterable[Record]) -> list[dict[str, Any]]:
    """The rows of rows=events, without the columns that are null; `json` as an object."""
    rows = []
    for record in records:
        for index, event in record.events():
            row = {
                "node": record.node,
                "seq": record.sequence,
                "index": index,
                "position": position(record.sequence, index),
                "entries": entries(event),
                "time_ms": record.time_ms,
                "steady_ms": record.steady_ms,
                "type": event.e,
                "version": event.v,
                "session": getattr(event, "session", None),
                "part": record.part,
                "json": orjson.loads(orjson.dumps(json_object(event))),
                "payload": None,
            }
            if isinstance(event, MESSAGES):
                row["payload"] = b"".join(record.pieces(event))
            elif isinstance(event, WillArmed):
                begin = event.at - sum(event.blocks)
                row["payload"] = bytes(record.payload[begin : event.at + event.size])
            rows.append({name: value for name, value in row.items() if value is not None})
    return rows
