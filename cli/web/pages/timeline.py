"""The page about the broker through time: marks of the last day, a moment, two moments compared."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from aiohttp import web

from cli.history import event_selection
from cli.logsource import parse_point, point_at
from cli.web.history import (
    MINUTE_MS,
    SHORTEST_MS,
    ActivityReader,
    FoldingStates,
    StateDiffs,
    TimeWindow,
    axis,
    window_within,
)
from cli.web.live import bars
from cli.web.pages.log import find_page
from cli.web.pages.responses import Site, asked, moment_ms
from cli.web.pages.time_axis_values import axis_about, moment_of, moments_compared, pins_compared
from eventstore.format import position
from eventstore.reading import LogPoint

if TYPE_CHECKING:
    from cli.web.live import WebLogClient
    from cli.web.pages.log import LogPage
    from eventstore.reading import LogSource
    from projections.replay import AsOf

_PATIENCE = 1.0
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


def _changes(lines: list[str]) -> list[str]:
    """Return the differences without the moments and the line for no differences."""
    return [line for line in lines[2:] if line != "no differences"]


class TimePages:
    """Pages about the broker through time."""

    def __init__(
        self, link: WebLogClient, site: Site, reader: ActivityReader, diffs: StateDiffs
    ) -> None:
        self._link = link
        self._site = site
        self._reader = reader
        self._diffs = diffs

    def install(self, app: web.Application) -> None:
        """Add the pages."""
        app.router.add_get("/time", self.time)
        app.router.add_get("/time/past", self.past)
        app.router.add_get("/time/axis", self.axis)
        app.router.add_get("/time/diff", self.difference)

    async def time(self, request: web.Request) -> web.Response:
        """Show the broker now, or as of ``at``."""
        values = await self._moment(asked(request, "at"))
        return self._site.page(request, "time.html", **values, **await self._about(request))

    async def past(self, request: web.Request) -> web.Response:
        """Return the part of the page that the time axis changes."""
        values = await self._moment(asked(request, "at") or "now")
        return self._site.part(request, "time.html", **values)

    async def axis(self, request: web.Request) -> web.Response:
        """Return the time axis of the last day, as far as it was read."""
        reader = self._reader
        await reader.wait(_PATIENCE)
        drawn = None
        now_ms = round(time.time() * 1000)
        if reader.since_ms is not None:
            drawn = self._axis(
                request, TimeWindow(min(reader.since_ms, now_ms - SHORTEST_MS), now_ms)
            )
        return web.json_response(
            {"axis": drawn, "reading": reader.reading(), "percent": None, "why": reader.problem}
        )

    def _axis(self, request: web.Request, whole: TimeWindow) -> dict[str, Any]:
        window = window_within(whole, moment_ms(request, "from"), moment_ms(request, "to"))
        activity = self._reader.activity
        count = max(1, min(_BARS, window.span_ms // MINUTE_MS))
        counts = [0] * count
        for minute in range(-(-window.begin_ms // MINUTE_MS), window.end_ms // MINUTE_MS + 1):
            place = (minute * MINUTE_MS - window.begin_ms) * count // window.span_ms
            counts[min(place, count - 1)] += activity.figure("published", minute)
        return {**axis(whole, window, activity.marks(window)), "bars": bars(counts)}

    async def difference(self, request: web.Request) -> web.Response:
        """Return the part of the page with the difference between two moments."""
        return self._site.part(request, "difference.html", **await self._about(request))

    async def _about(self, request: web.Request) -> dict[str, Any]:
        """Return the values of the time axis for the template."""
        moments = moments_compared(request)
        diff = None if moments is None else await self._difference(*moments)
        about = axis_about("/time", {}, "Messages published")
        return {"about": about, "asked": pins_compared(request, diff)}

    async def _difference(self, *given: str) -> dict[str, Any]:
        async with self._link.log() as source:
            points = [await point_at(source, parse_point(one)) for one in given]
            first, last = sorted(point.sequence for point in points)
            ends = [await moment_of(source, LogPoint(sequence)) for sequence in (first, last)]
        found = await self._diffs.find(first, last, _PATIENCE)
        if isinstance(found, FoldingStates):
            return {"folding": found}
        window = TimeWindow(ends[0].record_ms, max(ends[1].record_ms, ends[0].record_ms + 1))
        figures = []
        if await self._reader.reach(ends[0].record_ms, _PATIENCE):
            totals = self._reader.activity.totals(window)
            figures = [(label, f"{totals[name]:,}") for name, label in _SHOWN.items()]
        return {
            "folding": None,
            "ends": ends,
            "figures": figures,
            "lines": _changes(found),
            "whole_minutes": True,
        }

    async def _moment(self, at: str | None) -> dict[str, Any]:
        """Return the broker as of a moment: the figures of its minute, and the events before it."""
        async with self._link.log() as source:
            point = await point_at(source, None if at is None else parse_point(at))
            as_of = await moment_of(source, point)
            found = await self._events(source, point)
        return {
            "past": at is not None,
            "as_of": as_of,
            "found": found,
            "figures": await self._figures(as_of),
            "record": point.sequence,
            "last": source.last,
        }

    async def _figures(self, as_of: AsOf) -> list[tuple[str, int]]:
        minute = as_of.record_ms // MINUTE_MS * MINUTE_MS
        if not await self._reader.reach(as_of.record_ms, _PATIENCE):
            return []
        totals = self._reader.activity.totals(TimeWindow(minute, minute + 1))
        return [(label, totals[name]) for name, label in _SHOWN.items()]

    async def _events(self, source: LogSource, point: LogPoint) -> LogPage | None:
        if not point.sequence:
            return None
        wanted = event_selection(None, None, [], (None, None), None, follow=False)
        after = position(point.sequence, point.index)
        return await find_page(
            source,
            wanted,
            _EVENTS,
            after + 1,
            backwards=True,
            payload=False,
            seconds=_EVENT_SECONDS,
        )
