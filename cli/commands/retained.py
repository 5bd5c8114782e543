"""``foldmq retained ls`` and ``foldmq retained get``."""

import base64
import sys
import time
from typing import Any

from cli.commands.actor_list import LOG_COLUMN, Row, gather, show
from cli.commands.published_messages import add_setters
from cli.common import text
from cli.common.tables import Column, time_ago
from cli.common.text import printable
from cli.logs.broker_client import LiveBroker, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter, check_topic
from eventstore.errors import NoLog
from eventstore.format.positions import Position, format_position, sequence_of
from projections.views.vocabulary import json_object

PERMITTED = {True: "yes", False: "no", None: "unknown"}
"""Whether a publisher may still publish its message, in words."""


@run_to_end
async def run_list(
    flags: SourceFlags, topic_filter: str, limit: int | None, *, not_permitted: bool, as_json: bool
) -> None:
    """Print the matching retained messages, or those without permission.

    Raises UsageError for an invalid filter.
    """
    check_filter(topic_filter)
    async with open_brokers(flags) as brokers:
        messages, total = await retained_rows(brokers, topic_filter, not_permitted=not_permitted)
        shown = messages[:limit]
        for broker in brokers.present:
            await add_setters(broker, [row for source, row in shown if source is broker])
        rows = [brokers.labelled(broker, row) for broker, row in shown]
        for note in await brokers.unsure_notes():
            write_notice(note)
        if not_permitted:
            brokers.check_complete()
    now_ms = round(time.time() * 1000)
    columns: list[Column[Row]] = [
        *([LOG_COLUMN] if brokers.several else []),
        Column("POSITION", lambda row: format_position(row["position"]), right=True),
        Column("QOS", lambda row: row["qos"], right=True),
        Column("SIZE", lambda row: text.size(row["size"]), right=True),
        Column("SET", lambda row: _set(row, now_ms), right=True),
        Column("BY", lambda row: row.get("set_by"), name=True),
        Column("PERMITTED", lambda row: PERMITTED[row.get("permitted")]),
        Column("EXPIRES", lambda row: _clock(row["expires_ms"]), wide=True),
        Column("PROPERTIES", lambda row: ", ".join(row["properties"]) or None, wide=True),
        Column("TOPIC", lambda row: row["topic"], name=True),
    ]
    show(rows, total, "retained message", columns, as_json=as_json)


async def retained_rows(
    brokers: LogBrokers, topic_filter: str, *, not_permitted: bool
) -> tuple[list[tuple[LiveBroker, dict[str, Any]]], int]:
    """Return retained messages by topic, each with a broker that knows it, and the number of all.

    Every log has all of them, but only that of the publisher tells whether it is permitted.
    """

    async def ask(broker: LiveBroker) -> tuple[list[tuple[LiveBroker, dict[str, Any]]], int]:
        about = {"filter": topic_filter, "not_permitted": not_permitted}
        rows, total = await gather(LogBrokers([broker]), "retained", None, **about)
        return [(broker, row) for row in rows], total

    if not not_permitted:
        messages, total = await brokers.any(ask)
        return sorted(messages, key=_topic), total
    parts = await brokers.each(ask)
    by_topic = {
        row["topic"]: (broker, row)
        for _, (part, _) in parts
        for broker, row in part
        if row.get("permitted") is False  # an earlier version lists all
    }
    return sorted(by_topic.values(), key=_topic), max(total for _, (_, total) in parts)


def _topic(message: tuple[LiveBroker, dict[str, Any]]) -> str:
    return str(message[1]["topic"])


@run_to_end
async def run_get(flags: SourceFlags, topic: str, *, newline: bool, as_json: bool) -> None:
    """Write the payload of a retained message.

    Raises Refused if there is none, UsageError for an invalid topic.
    """
    check_topic(topic)
    async with open_brokers(flags) as brokers:
        for note in await brokers.unsure_notes():
            write_notice(note)
        message, payload = await retained_message(brokers, topic)
    if as_json:
        sys.stdout.write(text.json_line({**message, **text.payload_field(payload)}) + "\n")
        return
    out = sys.stdout.buffer
    if out.isatty():
        shown = payload.decode("utf-8", "backslashreplace")
        payload = "\n".join(map(printable, shown.split("\n"))).encode()
    out.write(payload + (b"\n" if newline else b""))
    out.flush()


def _set(row: Row, now_ms: int) -> str | None:
    """Return how long ago a message was published; "over" before the age of its copy."""
    copied = time_ago(row.get("set_before_ms"), now_ms)
    return time_ago(row.get("set_ms"), now_ms) or (copied and f"over {copied}")


def _clock(time_ms: int | None) -> str | None:
    return None if time_ms is None else text.clock(time_ms)


async def retained_message(brokers: LogBrokers, topic: str) -> tuple[dict[str, Any], bytes]:
    """Return a retained message as a JSON object, and its payload; raises Refused if none is."""

    async def ask(broker: LiveBroker) -> tuple[dict[str, Any], bytes]:
        fields = await broker.ask("retained.get", topic=topic)
        return brokers.labelled(broker, fields), await _payload(broker, fields)

    fields, payload = await brokers.any(ask)
    shown = json_object({key: fields[key] for key in fields if key != "payload_base64"})
    assert isinstance(shown, dict)  # noqa: S101 - it is of a mapping
    return shown, payload


async def _payload(broker: LiveBroker, fields: dict[str, Any]) -> bytes:
    """Return the payload, from the log if it is too large for a reply."""
    encoded = fields["payload_base64"]
    if encoded is not None:
        return base64.b64decode(encoded)
    # Few messages are that large: reading the log takes long to import.
    from eventstore.format.sealing import is_closed
    from eventstore.log.message_store import messages_of
    from eventstore.reading.log_source import open_log

    ref: Position = fields["position"]
    source = await open_log(broker.client, f"FOLDMQ_LOG_{broker.node}", broker.where)
    for record in await source.some([sequence_of(ref)]):
        for stored in messages_of(record):
            if 0 <= ref - stored.first < len(stored.payloads):
                payload = stored.payloads[ref - stored.first]
                if is_closed(payload):
                    raise Refused(
                        "the message is sealed and too large for a reply: subscribe to it"
                    )
                return payload
    raise NoLog(f"message {format_position(ref)} is no longer in the log: try again")
