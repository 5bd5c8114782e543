"""``foldmq top --once``: one frame, from two polls, as text or JSON."""

from __future__ import annotations

import asyncio
import math
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from cli.common import text
from cli.top.data import Questions
from cli.top.text import (
    ACTORS,
    TOPICS,
    Frame,
    History,
    Row,
    TopColumn,
    between,
    cells_of,
    fitting,
    head,
    header,
    health,
    plain,
    top_summary,
    topic_rows,
    troubles,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from cli.live import ReconnectingClient

_ROWS = 20
"""Rows of each table."""
_NO_CURVES = 80
"""Columns of the figures; the curves to their right do not exist for a single frame."""


async def run_once(
    link: ReconnectingClient, interval: float, sort: str, width: int, *, as_json: bool
) -> None:
    """Print a frame that is ``width`` columns wide; raises NoLiveBroker."""
    questions = Questions(link)
    before = await questions.status(topics=True)
    await asyncio.sleep(interval)
    after = await questions.status(topics=True)
    actors = await questions.actors(sort)
    frame = Frame(after, between(before, after), History())
    if as_json:
        sys.stdout.write(text.json_line(snapshot_object(frame, actors)) + "\n")
        return
    for line in snapshot_text(frame, actors[:_ROWS], sort, link.where, width):
        sys.stdout.write(line + "\n")


def snapshot_object(frame: Frame, actors: Sequence[Row]) -> dict[str, Any]:
    """Return a frame as a JSON object: the rates, and the broker's reply.

    Percentiles are in seconds; one beyond the histogram is null. ``rates`` are null if the broker
    was restarted between the polls.
    """
    status = dict(frame.status)
    topics = status.pop("topics", [])
    return {
        "time": text.iso(status["time_ms"]),
        "node": status["node"],
        "rates": None if frame.rates is None else _finite(asdict(frame.rates)),
        "status": status,
        "actors": list(actors),
        "topics": [{"topic": topic, "per_s": rate} for topic, rate in topics],
    }


def snapshot_text(
    frame: Frame, actors: Sequence[Row], sort: str, where: str, width: int
) -> Iterator[str]:
    """Yield the lines of a frame; the titles mark the sort key."""
    status = frame.status
    seconds = f"over {frame.rates.seconds:.1f} s" if frame.rates else "just started"
    moment = f"{text.clock(status['time_ms'])[:19]}  {seconds}"
    yield plain(header(frame, where, width, health(status), moment))
    for reason in troubles(status):
        yield f"! {reason}"
    for line in top_summary(frame, min(width, _NO_CURVES)):
        yield plain(line)
    rows = [{**row, "now_ms": status["time_ms"]} for row in actors]
    yield from _table(ACTORS, rows, sort, width)
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
