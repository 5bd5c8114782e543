"""``foldmq sessions rm``, ``sessions purge`` and ``foldmq retained rm``."""

import sys
from typing import Any

from cli.commands import retained
from cli.commands.actor_list import gather
from cli.commands.bulk_change import (
    ChangeResult,
    change,
    confirmed,
    find_sessions,
    portions,
    tell,
    tell_all,
)
from cli.commands.command_flags import ChangeOptions
from cli.commands.session_list import clients_of, left_out, session_selection
from cli.common import text
from cli.logs.broker_client import LiveBroker, Refused
from cli.logs.broker_search import open_brokers
from cli.logs.log_brokers import LogBrokers
from cli.logs.source_flags import SourceFlags, run_to_end
from cli.logs.topic_flags import check_filter
from eventstore.errors import UsageError


@run_to_end
async def remove(flags: SourceFlags, clients: list[str], manner: ChangeOptions) -> None:
    """Remove the sessions of clients; raises typer.Exit if some do not exist."""
    async with open_brokers(flags) as brokers:
        result = ChangeResult()
        sessions = await find_sessions(brokers, clients, result, _as_row)
        lines = list(map(_session_line, sessions.values()))
        what = _removal(len(sessions))
        if sessions and await confirmed(lines, what, manner):
            for broker in brokers.present:
                own = [client for client in sessions if brokers.of_session(client) is broker]
                with brokers.leaving_out(broker):
                    for portion in portions(own):
                        await change(broker, "remove_sessions", result, clients=portion)
        tell_all(brokers, result, "removed", "session", manner)


@run_to_end
async def purge(
    flags: SourceFlags, older_than: str | None, match: str | None, manner: ChangeOptions
) -> None:
    """Remove offline sessions; raises UsageError without a selection."""
    if older_than is None and match is None:
        raise UsageError("give --older-than or --match to select sessions")
    query = session_selection(match, False, older_than)
    async with open_brokers(flags) as brokers:
        sessions, _ = await gather(brokers, "sessions", None, without_logs=True, **query)
        rows, shared = clients_of(sessions)
        if shared:
            sys.stderr.write(f"foldmq: {left_out(shared)}\n")
        # In this order, the sessions of a portion were seen offline at about the same time.
        rows.sort(key=lambda row: row["closed_ms"])
        if not rows:
            sys.stdout.write("no matching offline session\n")
            brokers.check_complete()
            return
        result = ChangeResult()
        by_name = sorted(rows, key=lambda row: str(row["session"]))
        what = _removal(len(rows)) + _without(brokers)
        if await confirmed(list(map(_session_line, by_name)), what, manner):
            for broker in brokers.present:
                own = [row for row in rows if row.get("log", broker.node) == broker.node]
                with brokers.leaving_out(broker):
                    await remove_offline(broker, own, result)
        tell_all(brokers, result, "removed", "session", manner)


@run_to_end
async def clear(
    flags: SourceFlags, topic_filter: str | None, manner: ChangeOptions, *, not_permitted: bool
) -> None:
    """Remove the matching retained messages, or those of them without permission.

    Raises UsageError for an invalid filter, and without a selection.
    """
    if topic_filter is None and not not_permitted:
        raise UsageError("give FILTER or --not-permitted to select retained messages")
    topic_filter = "#" if topic_filter is None else topic_filter
    check_filter(topic_filter)
    async with open_brokers(flags) as brokers:
        # What one log removes, the others take from it.
        messages, _ = await retained.retained_rows(
            brokers, topic_filter, not_permitted=not_permitted
        )
        if not messages:
            brokers.check_complete()
            which = "without permission " if not_permitted else ""
            raise Refused(f"no retained message {which}on {text.name(topic_filter)}")
        result = ChangeResult()
        lines = [
            f"  {text.name(row['topic'])}  {text.size(row['size'])}"
            + (f"  by {text.name(row['set_by'])}" if not_permitted else "")
            for _, row in messages
        ]
        what = f"remove {text.count_of(len(messages), 'retained message')}"
        if await confirmed(lines, what, manner):
            for broker in brokers.present:
                own = [row["topic"] for source, row in messages if source is broker]
                with brokers.leaving_out(broker):
                    for portion in portions(own):
                        await change(
                            broker, "clear_retained", result,
                            topics=portion, not_permitted=not_permitted,
                        )  # fmt: skip
        tell(result, "removed", "retained message", manner)
        if not_permitted:
            brokers.check_complete()


async def remove_offline(
    broker: LiveBroker, rows: list[dict[str, Any]], result: ChangeResult
) -> None:
    """Remove sessions unless their clients have connected since they were listed."""
    closed = {row["session"]: row["closed_ms"] for row in rows}
    for portion in portions(closed):
        before = max(closed[client] for client in portion)
        await change(broker, "remove_sessions", result, clients=portion, offline_before_ms=before)


def _without(brokers: LogBrokers) -> str:
    """Return which logs a change leaves out, as text."""
    return f", but none of log {', '.join(brokers.absent)}" if brokers.absent else ""


def _removal(count: int) -> str:
    held = "it holds" if count == 1 else "they hold"
    return f"remove {text.count_of(count, 'session')} with all {held}"


def _session_line(row: dict[str, Any]) -> str:
    parts = ["connected" if row["connected"] else f"offline since {text.clock(row['closed_ms'])}"]
    for field, word in (("subscriptions", "subscription"), ("in_flight", "message")):
        if row[field]:
            in_flight = " in flight" if field == "in_flight" else ""
            parts.append(text.count_of(row[field], word) + in_flight)
    if row["queued"]:
        parts.append(f"{row['queued']:,} queued ({text.size(row['queued_bytes'])})")
    return f"  {text.name(row['session'])}  {', '.join(parts)}"


def _as_row(answer: dict[str, Any]) -> dict[str, Any]:
    """Return a session as the row of a list."""
    counts = {name: answer[name]["total"] for name in ("subscriptions", "in_flight", "releasing")}
    in_flight = counts["in_flight"] + counts["releasing"]
    return {**answer, "subscriptions": counts["subscriptions"], "in_flight": in_flight}
