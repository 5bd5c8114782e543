"""The page with the history of a message, as ``foldmq why`` prints it."""

import asyncio
import time

from aiohttp import web

from cli.commands.why import find_messages, position_of_message
from cli.logs.point_resolution import parse_point
from cli.logs.topic_flags import check_filter
from cli.web.pages.responses import Site, asked, chosen_log, number
from cli.web.pages.time_axis_values import notes_on_clocks
from cli.web.web_log_client import WebLogClient
from eventstore.errors import CutOff, NotFound, UsageError
from eventstore.reading.progress import silent
from projections.past.log_stories import WantedMessages
from projections.past.story_text import log_story_lines

_SECONDS = 10.0
"""Maximum seconds for an answer."""
_MAX = 10
"""Maximum messages in one answer."""


class WhyPage:
    """The page with the history of messages; one answer is computed at a time."""

    def __init__(self, link: WebLogClient, site: Site) -> None:
        self._link = link
        self._site = site
        self._one = asyncio.Semaphore()

    def install(self, app: web.Application) -> None:
        """Add the page."""
        app.router.add_get("/why", self.why)

    async def why(self, request: web.Request) -> web.Response:
        """Show the history of the last messages on a topic, or of the one at a position."""
        query = {key: asked(request, key) for key in ("topic", "client", "position", "at", "log")}
        stories: list[tuple[str, list[str]]] = []
        notes: list[str] = []
        problem = None
        code = 200
        try:
            count = max(1, number(request, "last", 1, _MAX))
            if query["topic"] is not None or query["position"] is not None:
                log = await self._log(request, query)
                stories, notes = await self._found(query, log, count)
        except UsageError as error:
            problem, code = str(error), 400
        except (NotFound, CutOff) as error:
            problem, code = str(error), 404
        return self._site.page(
            request,
            "why.html",
            code,
            query=query,
            stories=stories,
            notes=notes,
            problem=problem,
        )

    async def _log(self, request: web.Request, query: dict[str, str | None]) -> str:
        """Return the log to search: that of the receiver, or the one of a position.

        Empty for the only log, and for all.
        """
        chosen = await chosen_log(request, self._link)
        if query["client"] is not None:
            return await self._link.log_of(query["client"], chosen or None)
        if query["position"] is not None and not chosen and self._link.names:
            raise UsageError("a position is one of a log: choose the log, or give the receiver")
        return chosen

    async def _found(
        self, query: dict[str, str | None], log: str, count: int
    ) -> tuple[list[tuple[str, list[str]]], list[str]]:
        """Return the log and the lines of each history, and notes about the clocks of the logs.

        Raises NotFound or CutOff if there are none.
        """
        if (query["topic"] is None) == (query["position"] is None):
            raise UsageError("give either a topic or a position")
        if query["at"] is not None and query["topic"] is None:
            raise UsageError("a time needs a topic: a position names one message already")
        place = None if query["position"] is None else position_of_message(query["position"])
        moment = None if query["at"] is None else parse_point(query["at"])
        if query["topic"] is not None:
            check_filter(query["topic"])
        selection = WantedMessages(query["topic"], query["client"], count, place, moment=moment)
        try:
            async with asyncio.timeout(_SECONDS), self._one, self._link.sources() as logs:
                histories = await find_messages(
                    logs, log if log in logs else None, selection, silent
                )
                notes = await notes_on_clocks({log: logs[log]} if log else logs, moment)
        except TimeoutError:
            raise UsageError(
                f"the log was not read within {_SECONDS:.0f} s: foldmq why has no limit"
            ) from None
        now_ms = int(time.time() * 1000)
        stories = [
            (history.log, log_story_lines(history, log, query["client"], now_ms))
            for history in histories
        ]
        return [
            (name, [line.removeprefix("  ") for line in lines]) for name, lines in stories
        ], notes
