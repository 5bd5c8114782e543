"""``foldmq topics``: the topics of a running broker to which messages are published now."""

import asyncio
from collections.abc import Iterable
from typing import Any

from cli.commands.actor_list import Row, show
from cli.commands.session_list import rate
from cli.common import text
from cli.common.tables import Column
from cli.logs.broker_client import LiveBroker
from cli.logs.broker_search import open_brokers
from cli.logs.source import write_notice
from cli.logs.source_flags import SourceFlags, run_to_end


@run_to_end
async def run_topics(
    flags: SourceFlags, seconds: float, limit: int | None, *, unheard: bool, as_json: bool
) -> None:
    """Count messages for some seconds and print their topics, the busiest first."""
    complete = True

    async def read(broker: LiveBroker) -> list[dict[str, Any]]:
        nonlocal complete, seconds
        rows: list[dict[str, Any]] = []
        async for page in broker.pages("topics", unheard=unheard):
            rows += page["rows"]
            complete &= page["complete"]
            seconds = max(seconds, page["seconds"])
        return rows

    async with open_brokers(flags) as brokers:
        await brokers.each(lambda broker: broker.ask("topics"))  # begins to count
        await asyncio.sleep(seconds)
        parts = await brokers.each(read)
    rows = _merged(row for _, part in parts for row in part)
    for row in rows:
        row["per_s"] = round(row["count"] / seconds, 2)
    show(rows[:limit], len(rows), "topic", _columns(), as_json=as_json)
    if not complete:
        write_notice("there are more topics than the broker counts: the rarest are left out")
    if not rows:
        span = text.duration(round(seconds * 1000))
        what = " on a topic without a subscription" if unheard else ""
        write_notice(f"no message was published{what} in {span}")
    brokers.check_complete()


def _merged(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of all logs, each topic once: a log counts what its own clients publish."""
    topics: dict[str, dict[str, Any]] = {}
    for row in rows:
        total = topics.setdefault(row["topic"], {**row, "count": 0})
        total["count"] += row["count"]
        total["heard"] |= row["heard"]
    return sorted(topics.values(), key=lambda row: -row["count"])


def _columns() -> list[Column[Row]]:
    return [
        Column("MESSAGES", lambda row: row["count"], right=True),
        Column("PER S", lambda row: rate(row["per_s"]), right=True),
        Column(
            "SUBSCRIBED",
            lambda row: "yes" if row["heard"] else "no",
            style=lambda row: None if row["heard"] else "yellow",
        ),
        Column("RETAINED", lambda row: "yes" if row["retained"] else "no"),
        Column("TOPIC", lambda row: row["topic"], name=True),
    ]
