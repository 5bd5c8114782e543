"""``foldmq subscriptions``: the receivers of a message on a topic."""

import asyncio
import sys

from cli.common import Column, Table, text
from cli.inspection.actor_list import Row, log_broker
from cli.inspection.session_page import json_object
from cli.live import open_broker
from cli.logsource import SourceFlags, check_topic
from eventstore.format import format_position

OUTCOMES = {
    "sent": "sent",
    "queued": "queued: offline",
    "offline_qos0": "no: offline, QoS 0",
    "shared": "sent to one member",
    "shared_waits": "queued: no member is connected",
    "overlapped": "no: another filter",
}
"""Outcome of a message for a matching subscription."""


def run_receivers(flags: SourceFlags, topic: str, *, as_json: bool) -> None:
    """Print a line for each matching subscription; raises UsageError for an invalid topic."""
    check_topic(topic)
    asyncio.run(_run(flags, topic, as_json=as_json))


async def _run(flags: SourceFlags, topic: str, *, as_json: bool) -> None:
    rows: list[Row] = []
    retained: Row | None = None
    async with open_broker(flags) as broker:
        if flags.verbose:
            log_broker(broker)
        async for page in broker.pages("subscriptions", topic=topic):
            rows += page["rows"]
            retained = page["retained"]
    if as_json:
        found = {"topic": topic, "retained": retained, "subscriptions": rows}
        sys.stdout.write(text.json_line(json_object(found)) + "\n")
        return
    if rows:
        order = list(OUTCOMES)
        rows.sort(key=lambda row: order.index(row["why"]) if row["why"] in order else len(order))
        _table(rows)
    for line in outcome_lines(topic, rows, retained):
        sys.stdout.write(line + "\n")


def _table(rows: list[Row]) -> None:
    table: Table[Row] = Table(
        [
            Column("OUTCOME", lambda row: OUTCOMES.get(row["why"], row["why"])),
            Column("QOS", lambda row: row["qos"], right=True),
            Column("FILTER", lambda row: row["filter"], name=True),
            Column("CLIENT", lambda row: row["client"], name=True),
        ]
    )
    for row in rows:
        table.add(row)
    table.close()


def outcome_lines(topic: str, rows: list[Row], retained: Row | None) -> list[str]:
    """Return the outcome of a message on a topic as text."""
    sent = sum(row["why"] in ("sent", "shared") for row in rows)
    queued = sum(row["why"] in ("queued", "shared_waits") for row in rows)
    lines = [f"{text.name(topic)}: sent to {text.count_of(sent, 'client')}, queued for {queued:,}"]
    if retained is None:
        lines.append("no retained message")
    else:
        lines.append(
            f"retained: message {format_position(retained['ref'])}, QoS {retained['qos']}, "
            f"{text.size(retained['size'])}; sent first to new subscribers"
        )
    return lines
