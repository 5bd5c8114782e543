"""``foldmq subscriptions``: the preview of a message on a topic for each subscription."""

import sys
from collections import Counter
from typing import Any

from cli.commands.actor_list import LOG_COLUMN, Row
from cli.commands.advice import oldest
from cli.common import text
from cli.common.colour import Style
from cli.common.tables import Column, Table
from cli.logs.broker_client import LiveBroker
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_topic
from eventstore.format.positions import format_position
from projections.views.vocabulary import json_object
from protocol.mqtt.shared_filters import split_share
from protocol.mqtt.topics import matches

_ORDER = ("sent", "shared", "queued", "shared_waits", "dropped", "denied", "offline_qos0")
_GROUPS = {
    "sent": "sent",
    "shared": "sent",
    "queued": "queued",
    "shared_waits": "queued",
    "dropped": "dropped",
    "denied": "denied",
}
"""The groups in which outcomes are counted."""
_STYLES: dict[str, Style] = {
    "sent": "green",
    "queued": "yellow",
    "dropped": "red",
    "denied": "red",
}
_REASONS = {
    "offline": "offline",
    "older": "behind {queued:,} older messages",
    "resuming": "older messages are sent again first",
    "reader": "the client reads too slowly, {unsent} wait in its connection",
    "loading": "older messages are read from the log first",
    "log": "the disk does not keep up",
    "window": "window full, {outstanding:,} unacknowledged (max_ack_pending)",
    "receive_maximum": "Receive Maximum of the client, {in_flight:,} unacknowledged",
    "packet_ids": "all packet identifiers are in use",
    "no_member": "no member is connected",
    "no_room": "no member has room",
}
_QUEUES = {
    "queue_messages": "queue full, {queued:,} (max_queued_messages)",
    "queue_bytes": "queue full{above}, {queued_bytes:,} of {max_queued_bytes:,} bytes "
    "(max_queued_bytes)",
}


@run_to_end
async def run_receivers(
    flags: SourceFlags, topic: str, qos: int, size: int | None = None, *, as_json: bool
) -> None:
    """Print a line for each matching subscription; raises UsageError for an invalid topic."""
    check_topic(topic)
    async with open_brokers(flags) as brokers:
        rows, retained = await preview(brokers, topic, qos, size)
        denied = [] if rows or as_json else await denied_subscriptions(brokers, topic)
        for note in await brokers.unsure_notes():
            write_notice(note)
    if as_json:
        found = receivers_object(brokers, topic, qos, rows, retained)
        sys.stdout.write(text.json_line(found) + "\n")
    else:
        if rows:
            rows.sort(key=lambda row: (_rank(row), str(row["client"])))
            _table(rows, several=brokers.several)
        for line in outcome_lines(topic, rows, retained, qos):
            sys.stdout.write(line + "\n")
        for line in denied:
            sys.stdout.write(line + "\n")
    brokers.check_complete()


def receivers_object(
    brokers: LogBrokers, topic: str, qos: int, rows: list[Row], retained: Row | None
) -> object:
    """Return the preview of a message as a JSON object, see :func:`preview`."""
    found = {"topic": topic, "qos": qos, "retained": retained, "subscriptions": rows}
    if brokers.several:
        found["not_answering"] = list(brokers.absent)
    return json_object(found)


async def preview(
    brokers: LogBrokers, topic: str, qos: int, size: int | None = None
) -> tuple[list[Row], Row | None]:
    """Return a row for each subscription that matches a topic, and its retained message.

    ``size`` is that of the payload, by default the mean of the messages that wait for the client.

    With several logs, both name their ``log``. Each has a copy of the retained message: the first
    one is returned.
    """

    async def ask(broker: LiveBroker) -> tuple[list[Row], Row | None]:
        rows: list[Row] = []
        retained: Row | None = None
        payload = {} if size is None else {"size": size}
        async for page in broker.pages("subscriptions", topic=topic, qos=qos, **payload):
            rows += [brokers.labelled(broker, row) for row in page["rows"]]
            retained = page["retained"] and brokers.labelled(broker, page["retained"])
        return rows, retained

    found = await brokers.each(ask)
    rows = [row for _, (part, _) in found for row in part]
    return rows, next((one for _, (_, one) in found if one is not None), None)


async def denied_subscriptions(brokers: LogBrokers, topic: str) -> list[str]:
    """Return a line for each subscription to a topic that the brokers denied recently.

    They list a bounded number of such clients.
    """
    found = await brokers.each(lambda broker: broker.ask("problems"))
    lines = []
    for _, answer in found:
        for one in answer["problems"]:
            for asked, count in one["what"].items() if one["code"] == "denied" else ():
                action, _, topic_filter = asked.partition(" ")
                if action == "subscribe" and matches(split_share(topic_filter)[1], topic):
                    lines.append(
                        f"{text.name(one['client'])} was denied {text.name(topic_filter)} "
                        f"{text.count_of(count, 'time')}"
                    )
    return lines


def _rank(row: Row) -> int:
    return _ORDER.index(row["why"]) if row["why"] in _ORDER else len(_ORDER)


def _table(rows: list[Row], *, several: bool) -> None:
    table: Table[Row] = Table(
        [
            *([LOG_COLUMN] if several else []),
            Column("CLIENT", lambda row: row["client"], name=True),
            Column("FILTER", lambda row: row["filter"], name=True),
            Column("QOS", lambda row: row["qos"], right=True),
            Column("OUTCOME", outcome_text, ready=True, style=outcome_style, wrapped=True),
        ]
    )
    for row in rows:
        table.add(row)
    table.close()


def outcome_text(row: Row) -> str:
    """Return the outcome of a message for a subscription, and its reason."""
    why, reason = row["why"], row.get("reason", "")
    if why == "sent":
        return f"sent{_stalled(row)}"
    if why == "shared":
        return f"sent to one of {text.count_of(row['members'], 'member')}{_stalled(row)}"
    if why == "denied":
        return "denied: no permission to read it"
    if why == "overlapped":
        return "not sent: another filter of this client is used"
    if why == "ended":
        return "not sent: the session has just ended"
    if why == "offline_qos0":
        return (
            "not kept: no member is connected, QoS 0"
            if reason == "no_member"
            else ("not kept: offline, QoS 0")
        )
    cause = _filled(_REASONS, reason, row)
    if why in ("queued", "shared_waits"):
        return f"queued: {cause}"
    if why == "dropped":
        queue = _filled(_QUEUES, row.get("queue", ""), row)
        return f"dropped: {'; '.join(part for part in (queue, cause) if part)}"
    return text.escaped(why)


def _stalled(row: Row) -> str:
    """Return which of the receivers do not acknowledge what they were sent."""
    parts = []
    for one in row.get("stalled") or ():
        who = "it" if one["client"] == row["client"] else text.name(one["client"])
        count = text.count_of(one["count"], "message")
        parts.append(
            f"{who} acknowledges slowly: {count} open, {oldest(one)}"
            if one["slow"]
            else f"{who} has not acknowledged {count}, {oldest(one)}"
        )
    return f", but {'; '.join(parts)}" if parts else ""


def outcome_style(row: Row) -> Style | None:
    """Return the style of an outcome."""
    if stalled := row.get("stalled"):
        return "yellow" if all(one["slow"] for one in stalled) else "red"
    return _STYLES.get(_GROUPS.get(row["why"], ""))


def _filled(sentences: dict[str, str], code: str, row: Row) -> str:
    figures: dict[str, Any] = {**row}
    figures["unsent"] = text.size(row.get("unsent", 0))
    if code == "queue_bytes":
        room = row["max_queued_bytes"] - row["queued_bytes"]
        figures["above"] = f" for more than {room:,} bytes" if room > 0 else ""
    sentence = sentences.get(code)
    return text.escaped(code) if sentence is None else sentence.format(**figures)


def outcome_lines(topic: str, rows: list[Row], retained: Row | None, qos: int = 1) -> list[str]:
    """Return the outcome of a message on a topic as text."""
    counts = Counter(_GROUPS.get(row["why"], "") for row in rows)
    sent = text.count_of(counts["sent"], "client")
    parts = [f"sent to {sent}", f"queued for {counts['queued']:,}"]
    if not rows:
        parts = ["sent to no client: no subscription matches"]
    parts += [f"{what} for {counts[what]:,}" for what in ("dropped", "denied") if counts[what]]
    lines = [f"{text.name(topic)}, a message at QoS {qos} now: {', '.join(parts)}"]
    stalled = [one for row in rows for one in row.get("stalled") or ()]
    hanging = len({one["client"] for one in stalled if not one["slow"]})
    if hanging:
        lines[0] += f"; {text.count_of(hanging, 'receiver')} not acknowledging"
    if retained is None:
        lines.append("no retained message")
    else:
        log = f"in log {text.name(retained['log'])}, " if "log" in retained else ""
        lines.append(
            f"retained: {log}message {format_position(retained['position'])}, "
            f"QoS {retained['qos']}, {text.size(retained['size'])}; sent first to new subscribers"
        )
    return lines
