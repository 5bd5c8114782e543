"""The topics as a tree, the live tail of some, and what uses the disk."""

import time
from typing import Any

from aiohttp import web

from cli.web.activity_reader import LogActivities
from cli.web.pages.responses import Site, asked, choice, number
from cli.web.pages.session_at import describe_setters
from cli.web.topic_activity import Branch
from cli.web.topic_tails import TopicTails
from cli.web.web_log_client import WebLogClient
from projections.past.disk_use import sizes_by_levels

_TIMEOUT = 1.0
"""Seconds that a page waits for the log to be read."""
_MAX_BRANCHES = 500
_SECONDS = 10.0
_SHARE = 30
"""Minimum time between requests for retained messages, as a multiple of a request's duration."""
_KEPT = 16
_SORTS = ("level", "messages", "rate", "size", "last_ms")
_MAX_NAMES = 50
"""Number of topics, and of clients, that the disk use is shown of."""
_LEVELS = 2
_MAX_LEVELS = 128
_DEPTH = 40
"""Maximum levels shown as links above the tree."""


class TopicPages:
    """Pages about topics, and the disk use of topics and clients."""

    def __init__(
        self, link: WebLogClient, site: Site, activities: LogActivities, tails: TopicTails
    ) -> None:
        self._link = link
        self._site = site
        self._activities = activities
        self._tails = tails
        self._retained: dict[str | None, tuple[float, list[dict[str, Any]], bool]] = {}

    def install(self, app: web.Application) -> None:
        """Add the pages."""
        app.router.add_get("/topics", self.topics)
        app.router.add_get("/topics/tail", self.tail)
        app.router.add_get("/disk", self.disk)

    async def topics(self, request: web.Request) -> web.Response:
        """Show the branches one level below a path."""
        under = request.query.get("under")
        sort = choice(request, "sort", _SORTS) or "level"
        reader = await self._activities.of()
        await reader.wait_first_time(_TIMEOUT)
        retained, all_of_them = await self._rows(under)
        now_ms = round(time.time() * 1000)
        branches = reader.activity.branches(under, now_ms, retained)
        rows = sorted(branches.values(), key=lambda branch: branch.level)
        if sort != "level":
            rows.sort(key=lambda branch: _figure(branch, sort), reverse=True)
        return self._site.page(
            request,
            "topics.html",
            rows=rows[:_MAX_BRANCHES],
            more=max(0, len(rows) - _MAX_BRANCHES),
            under=under,
            above=_above(under),
            query={"under": under, "sort": sort if sort != "level" else None},
            since_ms=reader.since_ms,
            reading=reader.problem or reader.reading(),
            left_out=reader.activity.topics_left_out,
            all_retained=all_of_them,
        )

    async def disk(self, request: web.Request) -> web.Response:
        """Show the topics and the clients that have the most bytes of the log."""
        levels = number(request, "levels", _LEVELS, _MAX_LEVELS)
        reader = await self._activities.of()
        await reader.wait_first_time(_TIMEOUT)
        use = reader.activity.disk_use()
        tables = {
            "topic": sizes_by_levels(use.topics, max(1, levels)).most_common(_MAX_NAMES + 1),
            "client": use.clients.most_common(_MAX_NAMES + 1),
        }
        return self._site.page(
            request,
            "disk.html",
            tables=tables,
            most=_MAX_NAMES,
            total=use.bytes,
            records=use.records,
            levels=levels,
            query={"levels": levels if levels != _LEVELS else None},
            since_ms=reader.since_ms,
            reading=reader.problem or reader.reading(),
        )

    async def _rows(self, under: str | None) -> tuple[list[dict[str, Any]], bool]:
        """Return the first retained messages below a path, and whether the list is complete."""
        until, rows, all_of_them = self._retained.get(under, (0.0, [], True))
        begun = time.monotonic()
        if begun >= until:
            topic_filter = "#" if under is None else f"{under}/#"
            _, answer = await self._link.ask_any("retained", filter=topic_filter)
            rows, all_of_them = answer["rows"], answer["cursor"] is None
            while len(self._retained) >= _KEPT:
                del self._retained[next(iter(self._retained))]
            took = time.monotonic() - begun
            self._retained[under] = begun + max(_SECONDS, _SHARE * took), rows, all_of_them
        await describe_setters(self._link, rows)
        return rows, all_of_them

    async def tail(self, request: web.Request) -> web.Response:
        """Show the latest messages on the topics of a filter."""
        topic = asked(request, "topic")
        work = self._tails.find(topic) if topic is not None else None
        return await self._site.answer(request, "tail.html", {"topic": topic}, work)


def _figure(branch: Branch, name: str) -> float:
    value: float = getattr(branch, name)
    return value


def _above(under: str | None) -> list[tuple[str, str]]:
    """Return the levels of a path, each with the path up to it."""
    levels = [] if under is None else under.split("/")
    paths = ["/".join(levels[: end + 1]) for end in range(min(len(levels), _DEPTH))]
    return list(zip(levels, paths, strict=False))
