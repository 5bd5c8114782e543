"""``foldmq top --once``: one frame, from two polls, as text or JSON."""

import asyncio
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from rich.console import Console, RenderableType
from rich.text import Text

from cli.common import text
from cli.logs.reconnecting_client import ReconnectingClient
from cli.top.columns import (
    ACTORS,
    ACTORS_OF_LOGS,
    LOGS,
    TOPICS,
    top_table,
    topic_rows,
)
from cli.top.figures import header, health, top_problems, top_summary
from cli.top.rates import Rates
from cli.top.watched_broker import Frame, History, Row, WatchedBroker

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
        console = Console(width=width, highlight=False)
        with console.capture() as capture:
            console.print(*snapshot(frame, actors[:_ROWS], sort, link.where, width), sep="\n")
        for line in capture.get().splitlines():
            sys.stdout.write(line.rstrip() + "\n")
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


def snapshot(
    frame: Frame, actors: Sequence[Row], sort: str, where: str, width: int
) -> Iterator[RenderableType]:
    """Yield the parts of a frame; the titles mark the sort key."""
    status = frame.status
    seconds = f"over {frame.rates.seconds:.1f} s" if frame.rates else "just started"
    moment = f"{text.clock(status['time_ms'])[:19]}  {seconds}"
    yield header(frame, where, width, health(status), moment)
    for reason in top_problems(status):
        yield Text(f"! {reason}", overflow="ignore", no_wrap=True)
    yield top_summary(frame, min(width, _NO_CURVES))
    came = None if frame.rates is None else sum(frame.rates.messages_in)
    for columns, rows, key in (
        (LOGS, list(frame.logs), "log"),
        (
            ACTORS_OF_LOGS if frame.logs else ACTORS,
            [{**row, "now_ms": status["time_ms"]} for row in actors],
            sort,
        ),
        (TOPICS, topic_rows(status.get("topics", []), came)[:_ROWS], "rate"),
    ):
        if rows:
            yield Text()
            yield top_table(columns, rows, key, width)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, tuple):
        return [_finite(item) for item in value]
    if isinstance(value, float):
        return None if math.isinf(value) else round(value, 6)
    return value
