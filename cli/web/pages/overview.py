"""The overview, the page of an actor, and the event log."""

import time
from typing import Any

from aiohttp import web

from cli.commands.advice import Advice
from cli.commands.doctor import find_problems, pids_of
from cli.commands.log_events import event_selection
from cli.commands.status import ask_statuses
from cli.logs.broker_client import Refused
from cli.logs.next_commands import NextCommands
from cli.web.activity import MINUTE_MS
from cli.web.activity_reader import LogActivities
from cli.web.pages.log import find_in_logs
from cli.web.pages.middleware import viewer
from cli.web.pages.responses import Site, asked, choice, chosen_log, is_fragment, number
from cli.web.pages.time_axis_values import check_times, notes_on_clocks
from cli.web.samples import EVERY, Samples
from cli.web.svg_charts import day_charts
from cli.web.time_axis import TimeWindow
from cli.web.web_log_client import WebLogClient
from eventstore.errors import CorruptLog, UsageError
from projections.past.event_reader import EVENT_TYPES

_ROWS = 8
_FEWER = (_ROWS, 2, 1)
"""Numbers of rows to request at once, fewer if names are long."""
_PARTS = (100, 10, 1)
_SELDOM = 10.0
_SHARE = 30
"""A request is not repeated for this multiple of its duration."""
_FEW_ACTORS = 50
_FEW_PROBLEMS, _MAX_PROBLEMS = 4, 500
"""Problems on the overview, and on their own page."""
_DAY_TIMEOUT = 0.5
"""Seconds that the overview waits for the first charts of the last day."""
_HOUR_MS = 60 * MINUTE_MS
_CHANGES = {
    "restart": ("BrokerStarted", "Starts of the broker"),
    "connect": ("SessionOpened", "Connects"),
    "lost": ("SessionClosed", "Lost connections"),
    "takeover": ("SessionTakenOver", "Takeovers"),
    "will": ("WillFired", "Wills published"),
    "dropped": ("MessageDropped", "Messages dropped"),
    "expired": ("Expired", "Messages expired"),
}
"""Figures of the log that tell what changed: their events and labels."""
_LOG_ROWS = 100
_MAX_LOG_ROWS = 500
_TYPES = [kind.__name__ for kind in EVENT_TYPES.values()]


class Pages:
    """Pages about the broker as a whole, one actor, and the log."""

    def __init__(
        self, link: WebLogClient, site: Site, samples: Samples, activities: LogActivities
    ) -> None:
        self._link = link
        self._site = site
        self._samples = samples
        self._activities = activities
        self._problems: tuple[float, list[Advice]] = 0.0, []
        self._tops: dict[tuple[str, str], tuple[float, list[dict[str, Any]]]] = {}

    def install(self, app: web.Application) -> None:
        """Add the pages."""
        app.router.add_get("/", self.overview)
        app.router.add_get("/developers", self.developers)
        app.router.add_get("/actor", self.actor)
        app.router.add_get("/problems", self.problems)
        app.router.add_get("/log", self.log)

    async def overview(self, request: web.Request) -> web.Response:
        """Show the figures of ``foldmq top``."""
        sample = await self._samples.latest()
        advice, _ = await self._advice(_MAX_PROBLEMS)
        queues = await self._top("sessions", "queued", _SELDOM)
        return self._site.page(
            request,
            "overview.html",
            status=sample.status,
            rates=sample.rates,
            rows=sample.logs,
            charts=self._samples.charts(),
            **await self._day(),
            queues=[row for row in queues if row["queued"]],
            topics=(sample.status.get("topics") or [])[:_ROWS],
            urgent=sum(problem.severity == "problem" for problem in advice),
            warnings=sum(problem.severity == "warning" for problem in advice),
            advice=advice[:_FEW_PROBLEMS],
            more=max(0, len(advice) - _FEW_PROBLEMS),
        )

    async def developers(self, request: web.Request) -> web.Response:
        """Show the busiest actors, the longest mailboxes, and what the memory is for."""
        sample = await self._samples.latest()
        busiest = await self._top("actors", "recent", EVERY)
        fullest = await self._top("actors", "mailbox", _SELDOM)
        if not any(row["mailbox"] for row in fullest):
            fullest = await self._top("actors", "high_water", _SELDOM)
        return self._site.page(
            request,
            "developers.html",
            status=sample.status,
            rates=sample.rates,
            busiest=[row for row in busiest if row["recent_us_per_s"] > 0],
            fullest=[row for row in fullest if row["high_water"] > 1],
        )

    async def _day(self) -> dict[str, Any]:
        """Return charts of the last day, and changes of the last hour, as far as known."""
        reader = await self._activities.of()
        try:
            await reader.wait_first_time(_DAY_TIMEOUT)
        except CorruptLog as error:
            return {"day": [], "changes": [], "reading": str(error)}
        reading = reader.problem or reader.reading()
        read: dict[str, Any] = {"day": [], "changes": [], "reading": reading}
        if reader.since_ms is None:
            return read
        now_ms = round(time.time() * 1000)
        begins = [now_ms - hours * _HOUR_MS for hours in (2, 1)]
        complete = reading is None
        since_ms = begins[1] if complete else max(begins[1], reader.since_ms)
        earlier, later = (
            reader.activity.totals(TimeWindow(begin, end))
            for begin, end in ((begins[0], begins[1] - MINUTE_MS), (since_ms, now_ms))
        )
        is_read = complete or reader.since_ms <= begins[0]
        return {
            **read,
            "day": day_charts(reader.activity, reader.since_ms, now_ms),
            "since_ms": since_ms,
            "changes": [
                (event, label, later[name], earlier[name] if is_read else None)
                for name, (event, label) in _CHANGES.items()
            ],
        }

    async def problems(self, request: web.Request) -> web.Response:
        """Show the problems found by ``foldmq doctor``."""
        advice, more = await self._advice(_MAX_PROBLEMS)
        return self._site.page(request, "problems.html", advice=advice, more=more)

    async def _advice(self, most: int) -> tuple[list[Advice], int]:
        """Return the problems, the most urgent first, and the number of further ones.

        The search takes at most a fraction of the time.
        """
        until, advice = self._problems
        begun = time.monotonic()
        if begun >= until:
            await self._samples.latest()
            # Brokers that just failed to answer are left out.
            brokers = self._link.polled or await self._link.open()
            statuses = {status["node"]: status for status in await ask_statuses(brokers)}
            problems, _ = await find_problems(brokers, statuses)
            commands = NextCommands(self._link.flags, pids_of(statuses), elsewhere=True)
            advice = [
                problem._replace(next=commands.complete(problem.next)) for problem in problems
            ]
            now = time.monotonic()
            self._problems = now + max(EVERY / 2, _SHARE * (now - begun)), advice
        return advice[:most], max(0, len(advice) - most)

    async def _top(self, endpoint: str, by: str, seconds: float) -> list[dict[str, Any]]:
        """Return the highest rows, cached for some seconds, or longer if they took long."""
        until, rows = self._tops.get((endpoint, by), (0.0, []))
        begun = time.monotonic()
        if begun >= until:
            rows, _ = await self._link.ask_highest(endpoint, _FEWER, by, {})
            now = time.monotonic()
            # The broker examines all actors: not every two seconds with 100,000 of them.
            self._tops[endpoint, by] = now + max(seconds / 2, _SHARE * (now - begun)), rows
        return rows

    async def actor(self, request: web.Request) -> web.Response:
        """One actor, and the other actors of the same client."""
        named = asked(request, "id")
        if named is None:
            raise UsageError("the URL lacks the id of an actor")
        log = await chosen_log(request, self._link)
        if not log and self._link.names:
            raise UsageError("the URL lacks the log of the actor")
        answered = others = reason = None
        try:
            answered, _ = await self._link.ask_less(
                "actor", _PARTS, lambda most: {"id": named, "most": most}, log
            )
        except Refused as error:
            reason = str(error)
        if answered is not None and answered["actor"]["client"] is not None:
            answer = await self._link.ask_log(log, "actors", client=answered["actor"]["client"])
            others = [{**row, "log": log} for row in answer["rows"][:_FEW_ACTORS]]
        status = 200 if answered is not None or is_fragment(request) else 404
        return self._site.page(
            request,
            "actor.html",
            status,
            id=named,
            log=log,
            found=answered,
            others=others,
            gone=reason,
        )

    async def log(self, request: web.Request) -> web.Response:
        """Events of the log, latest first or earliest first."""
        query = {key: asked(request, key) for key in ("session", "topic", "from", "to", "payload")}
        withheld = query["payload"] is not None and not viewer(request).role.sees_payloads
        if withheld:
            query["payload"] = None
        kinds = [kind for kind in request.query.getall("type", []) if kind]
        order = choice(request, "order", ("newest", "oldest")) or "newest"
        rows = max(1, number(request, "rows", _LOG_ROWS, _MAX_LOG_ROWS))
        after = asked(request, "after")
        log_page = problem = None
        log = ""
        try:
            log = await self._log_shown(request, query["session"])
            bounds = (query["from"], query["to"])
            selection = event_selection(
                query["session"], query["topic"], kinds, bounds, None, follow=False
            )
            async with self._link.sources(log) as sources:
                if len(sources) > 1:
                    check_times(selection.start, selection.end)
                log_page = await find_in_logs(
                    sources,
                    selection,
                    rows,
                    after,
                    backwards=order == "newest",
                    payload=query["payload"] is not None,
                )
                log_page.notes.extend(
                    await notes_on_clocks(sources, selection.start, selection.end)
                )
        except UsageError as error:
            problem = str(error)
        query["log"] = log or None
        return self._site.page(
            request,
            "log.html",
            400 if problem else 200,
            found=log_page,
            problem=problem,
            query={**query, "type": kinds, "order": order if order != "newest" else None},
            log=log,
            types=_TYPES,
            later=after is not None,
            withheld=withheld,
        )

    async def _log_shown(self, request: web.Request, session: str | None) -> str:
        """Return the log of which events are shown: one that is named, or that of a client."""
        chosen = await chosen_log(request, self._link)
        if chosen or session is None or session.startswith("$"):
            return chosen
        return await self._link.log_of(session)
