"""The page about the broker over time: marks of the last day, a moment, two moments compared.

With several logs it is about all of them, or about one that is chosen. A moment of all is a time.
"""

import asyncio
import time
from collections.abc import Mapping
from typing import Any

from aiohttp import web

from cli.commands.log_events import event_selection
from cli.logs.point_resolution import parse_point, point_at
from cli.web.activity import MINUTE_MS
from cli.web.activity_reader import LogActivities
from cli.web.background_fold import Folding
from cli.web.pages.log import Row, find_page, merge_rows
from cli.web.pages.responses import Site, asked, chosen_log, moment_ms
from cli.web.pages.time_axis_values import (
    SharedMoment,
    axis_about,
    check_times,
    jumped_between,
    moments_compared,
    neighbours,
    notes_on_clocks,
    pins_compared,
    shared_moment,
)
from cli.web.state_diffs import StateDiffs
from cli.web.svg_charts import bars
from cli.web.time_axis import SHORTEST_MS, TimeWindow, axis, window_within
from cli.web.web_log_client import WebLogClient
from eventstore.display import iso
from eventstore.format.positions import position
from eventstore.reading.log_points import LogPoint
from eventstore.reading.log_source import LogSource
from eventstore.reading.position_text import PointSpec

_TIMEOUT = 1.0
"""Seconds that a page waits for the log to be read."""
_BARS = 150
_EVENTS = 20
_EVENT_SECONDS = 1.0
_SHOWN = {
    "published": "Messages published, QoS 1 and 2",
    "delivered": "Messages delivered, QoS 1 and 2",
    "queued": "Messages queued",
    "dropped": "Messages dropped",
    "connect": "Connects",
    "takeover": "Takeovers",
    "lost": "Lost connections",
    "will": "Wills",
    "restart": "Restarts",
}


class TimePages:
    """Pages about the broker over time."""

    def __init__(
        self, link: WebLogClient, site: Site, activities: LogActivities, diffs: StateDiffs
    ) -> None:
        self._link = link
        self._site = site
        self._activities = activities
        self._diffs = diffs

    def install(self, app: web.Application) -> None:
        """Add the pages."""
        app.router.add_get("/time", self.time)
        app.router.add_get("/time/past", self.past)
        app.router.add_get("/time/axis", self.axis)
        app.router.add_get("/time/diff", self.difference)

    async def time(self, request: web.Request) -> web.Response:
        """Show the broker now, or as of ``at``."""
        log = await chosen_log(request, self._link)
        values = await self._moment(log, asked(request, "at"))
        about = await self._about(request, log)
        return self._site.page(request, "time.html", log=log, **values, **about)

    async def past(self, request: web.Request) -> web.Response:
        """Return the part of the page that the time axis changes."""
        log = await chosen_log(request, self._link)
        values = await self._moment(log, asked(request, "at") or "now")
        return self._site.part(request, "time.html", log=log, **values)

    async def axis(self, request: web.Request) -> web.Response:
        """Return the time axis of the last day, as far as it was read."""
        log = await chosen_log(request, self._link)
        reader = await self._activities.of(log)
        await reader.wait(_TIMEOUT)
        drawn = None
        now_ms = round(time.time() * 1000)
        if reader.since_ms is not None:
            whole = TimeWindow(min(reader.since_ms, now_ms - SHORTEST_MS), now_ms)
            drawn = await self._axis(request, whole, log)
        return web.json_response(
            {"axis": drawn, "reading": reader.reading(), "percent": None, "why": reader.problem}
        )

    async def _axis(self, request: web.Request, whole: TimeWindow, log: str) -> dict[str, Any]:
        window = window_within(whole, moment_ms(request, "from"), moment_ms(request, "to"))
        activity = (await self._activities.of(log)).activity
        count = max(1, min(_BARS, window.span_ms // MINUTE_MS))
        counts = [0] * count
        for minute in range(-(-window.begin_ms // MINUTE_MS), window.end_ms // MINUTE_MS + 1):
            place = (minute * MINUTE_MS - window.begin_ms) * count // window.span_ms
            counts[min(place, count - 1)] += activity.figure("published", minute)
        by_time = not log and len(await self._link.logs()) > 1
        drawn = axis(whole, window, activity.marks(window), by_time=by_time)
        return {**drawn, "bars": bars(counts)}

    async def difference(self, request: web.Request) -> web.Response:
        """Return the part of the page with the difference between two moments."""
        log = await chosen_log(request, self._link)
        return self._site.part(request, "difference.html", **await self._about(request, log))

    async def _about(self, request: web.Request, log: str) -> dict[str, Any]:
        """Return the values of the time axis for the template."""
        moments = moments_compared(request)
        diff = None if moments is None else await self._difference(log, *moments)
        about = axis_about("/time", {"log": log} if log else {}, "Messages published")
        return {"about": about, "asked": pins_compared(request, diff)}

    async def _difference(self, log: str, *texts: str) -> dict[str, Any]:
        async with self._link.sources(log) as sources:
            times = [*map(parse_point, texts)]
            moments = [await _points(sources, spec) for spec in times]
            clocks = await notes_on_clocks(sources, *times)
            first, second = sorted(moments, key=_sequences)
            ends = [await shared_moment(sources, points) for points in (first, second)]
        results = await asyncio.gather(
            *(
                self._diffs.find(first[name].sequence, second[name].sequence, _TIMEOUT, name)
                for name in first
            )
        )
        folding = [part for part in results if isinstance(part, Folding)]
        if folding:
            count, of = sum(part.done for part in folding), sum(part.of for part in folding)
            return {"folding": Folding(count, of)}
        lines: list[str] = []
        counts: list[str] = []
        notes: list[str] = []
        for name, part in zip(first, results, strict=True):
            if isinstance(part, Folding):
                continue
            of_log = f"log {name}: " if len(first) > 1 else ""
            lines += [f"log {name}", *part.lines] if part.lines and of_log else part.lines
            counts += [of_log + total for total in part.totals]
            notes += [of_log + note for note in part.notes]
        reader = await self._activities.of(log)
        window = TimeWindow(ends[0].record_ms, max(ends[1].record_ms, ends[0].record_ms + 1))
        figures = []
        if jumped_between(*ends):
            clocks.append("the clock jumped between A and B: figures of minutes are left out")
        elif await reader.reach(ends[0].record_ms, _TIMEOUT):
            totals = reader.activity.totals(window)
            figures = [(label, f"{totals[name]:,}") for name, label in _SHOWN.items()]
        return {
            "folding": None,
            "ends": ends,
            "figures": figures,
            "lines": lines,
            "totals": counts,
            "notes": notes,
            "clocks": clocks,
            "whole_minutes": True,
        }

    async def _moment(self, log: str, at: str | None) -> dict[str, Any]:
        """Return the broker as of a moment: the figures of its minute, and the events before it."""
        async with self._link.sources(log) as sources:
            moment = None if at is None else parse_point(at)
            points = await _points(sources, moment)
            notes = await notes_on_clocks(sources, moment)
            as_of = await shared_moment(sources, points)
            rows = await _events(sources, points)
            is_single = len(sources) == 1
            if is_single:
                ((source, point),) = zip(sources.values(), points.values(), strict=True)
                before, after = _records_beside(source, point)
            else:
                before, after = (
                    None if ms is None else iso(ms) for ms in await neighbours(sources, as_of)
                )
        return {
            "past": at is not None,
            "as_of": as_of,
            "at": str(point.sequence) if is_single else iso(as_of.record_ms),
            "rows": rows,
            "notes": notes,
            "figures": await self._figures(log, as_of),
            "before": before,
            "after": after,
        }

    async def _figures(self, log: str, as_of: SharedMoment) -> list[tuple[str, int]]:
        minute = as_of.record_ms // MINUTE_MS * MINUTE_MS
        reader = await self._activities.of(log)
        if not await reader.reach(as_of.record_ms, _TIMEOUT):
            return []
        totals = reader.activity.totals(TimeWindow(minute, minute + 1))
        return [(label, totals[name]) for name, label in _SHOWN.items()]


def _sequences(points: Mapping[str, LogPoint]) -> list[int]:
    return [point.sequence for point in points.values()]


def _records_beside(source: LogSource, point: LogPoint) -> tuple[str | None, str | None]:
    """Return the record before a point of a log and the one after it, as places of a request."""
    record = point.sequence
    before = str(record - 1) if record > 1 else None
    return before, str(record + 1) if record < source.last else None


async def _points(
    sources: Mapping[str, LogSource], moment: PointSpec | None
) -> dict[str, LogPoint]:
    """Return the point of each log at a moment; None: its end.

    Raises UsageError for a position if there are several logs.
    """
    if len(sources) > 1:
        check_times(moment)
    return {log: await point_at(source, moment) for log, source in sources.items()}


async def _events(sources: Mapping[str, LogSource], points: Mapping[str, LogPoint]) -> list[Row]:
    """Return the last events until a moment, the latest first."""
    selection = event_selection(None, None, [], (None, None), None, follow=False)
    pages = {}
    for log, source in sources.items():
        point = points[log]
        if point.sequence:
            pages[log] = await find_page(
                source,
                selection,
                _EVENTS,
                position(point.sequence, point.index) + 1,
                backwards=True,
                payload=False,
                seconds=_EVENT_SECONDS,
            )
    return merge_rows(pages, _EVENTS, {}, backwards=True)[0]
