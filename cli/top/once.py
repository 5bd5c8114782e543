"""``foldmq top --once``: one frame, from two polls, as text or JSON."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from cli.common import text
from cli.top.columns import (
    ACTORS,
    ACTORS_OF_LOGS,
    LOGS,
    TOPICS,
    Row,
    TopColumn,
    cells_of,
    fitting,
    head,
    topic_rows,
)
from cli.top.rate_history import History
from cli.top.styled_text import plain
from cli.top.summary_text import Frame, header, health, top_problems, top_summary
from cli.top.watched_broker import WatchedBroker

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cli.logs.reconnecting_client import ReconnectingClient
    from cli.top.rates import Rates

_ROWS = 20
"""Rows of each table."""
_NO_CURVES = 80
"""Columns of the figures; the curves to their right do not exist for a single frame."""


async def run_once(
    link: ReconnectingClient, interval: float, sort: str, width: int, *, as_json: bool
) -> None:
    """Print a frame that is ``width`` columns wide.

    Raises NoLiveBroker, also behind a frame without the logs whose brokers do not answer.
    """
    monitor = WatchedBroker(link, interval)
    monitor.took(await monitor.queries.statuses(topics=True))
    await asyncio.sleep(interval)
    frame = monitor.took(await monitor.queries.statuses(topics=True))
    frame = replace(frame, history=History())
    actors = await monitor.queries.actors(sort)
    if as_json:
        sys.stdout.write(text.json_line(snapshot_object(frame, actors)) + "\n")
    else:
        for line in snapshot_text(frame, actors[:_ROWS], sort, link.where, width):
            sys.stdout.write(line + "\n")
    if link.polled is not None:
        link.polled.check_complete()


def snapshot_object(frame: Frame, actors: Sequence[Row]) -> dict[str, Any]:
    """Return a frame as a JSON object: the rates, and the broker's reply.

    Percentiles are in seconds; one beyond the histogram is null. ``rates`` are null if the broker
    was restarted between the polls. With several logs, ``rates`` are those of all together, and
    each has its own with its ``status``.
    """
    status = dict(frame.status)
    topics = status.pop("topics", [])
    return {
        "time": text.iso(status["time_ms"]),
        "node": status["node"],
        "rates": _rates(frame.rates),
        **(_logs(frame.logs) if frame.logs else {"status": status}),
        "actors": [{key: row[key] for key in row if key != "short_log"} for row in actors],
        "topics": [{"topic": topic, "per_s": rate} for topic, rate in topics],
    }


def _logs(rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "logs": [
            {
                "log": row["log"],
                "rates": _rates(row["rates"]),
                "status": {key: row["status"][key] for key in row["status"] if key != "topics"},
            }
            for row in rows
            if row["status"] is not None
        ],
        "not_answering": [row["log"] for row in rows if row["status"] is None],
    }


def _rates(rates: Rates | None) -> Any:
    return None if rates is None else _finite(asdict(rates))


def snapshot_text(
    frame: Frame, actors: Sequence[Row], sort: str, where: str, width: int
) -> Iterator[str]:
    """Yield the lines of a frame; the titles mark the sort key."""
    status = frame.status
    seconds = f"over {frame.rates.seconds:.1f} s" if frame.rates else "just started"
    moment = f"{text.clock(status['time_ms'])[:19]}  {seconds}"
    yield plain(header(frame, where, width, health(status), moment))
    for reason in top_problems(status):
        yield f"! {reason}"
    for line in top_summary(frame, min(width, _NO_CURVES)):
        yield plain(line)
    yield from _table(LOGS, list(frame.logs), "log", width)
    rows = [{**row, "now_ms": status["time_ms"]} for row in actors]
    yield from _table(ACTORS_OF_LOGS if frame.logs else ACTORS, rows, sort, width)
    came = None if frame.rates is None else sum(frame.rates.messages_in)
    yield from _table(TOPICS, topic_rows(status.get("topics", []), came)[:_ROWS], "rate", width)


def _table(columns: Sequence[TopColumn], rows: list[Row], sort: str, width: int) -> Iterator[str]:
    if not rows:
        return
    sized = fitting(columns, width)
    yield ""
    yield plain(head(sized, sort))
    for row in rows:
        yield plain(cells_of(row, sized))


def _finite(found: Any) -> Any:
    if isinstance(found, dict):
        return {key: _finite(value) for key, value in found.items()}
    if isinstance(found, tuple):
        return [_finite(value) for value in found]
    if isinstance(found, float):
        return None if math.isinf(found) else round(found, 6)
    return found
