"""The page with the history of a message, as ``foldmq why`` prints it."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cli.history import explain_no_message, story_lines
from cli.logsource import check_filter, parse_point, point_at
from cli.web.pages.responses import Site, asked, number
from eventstore.errors import NotFound, UsageError
from eventstore.format import position, sequence_of
from projections.replay import find_stories, message_at, topic_matcher

if TYPE_CHECKING:
    from aiohttp import web

    from cli.web.live import WebLogClient
    from eventstore.reading import LogSource
    from projections.audit import MessageStory

_SECONDS = 10.0
"""Maximum seconds for an answer."""
_MOST = 10
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
        given = {key: asked(request, key) for key in ("topic", "client", "position", "at")}
        stories: list[list[str]] = []
        problem = None
        code = 200
        try:
            last = max(1, number(request, "last", 1, _MOST))
            if given["topic"] is not None or given["position"] is not None:
                found = await self._found(given, last)
                stories = [
                    [line.removeprefix("  ") for line in story_lines(story, given["client"])]
                    for story in found
                ]
        except UsageError as error:
            problem, code = str(error), 400
        except NotFound as error:
            problem, code = str(error), 404
        return self._site.page(
            request, "why.html", code, query=given, stories=stories, problem=problem
        )

    async def _found(self, given: dict[str, str | None], last: int) -> list[MessageStory]:
        if (given["topic"] is None) == (given["position"] is None):
            raise UsageError("give either a topic or a position")
        if given["at"] is not None and given["topic"] is None:
            raise UsageError("a time needs a topic: a position names one message already")
        try:
            async with asyncio.timeout(_SECONDS), self._one, self._link.log() as source:
                return await _stories(source, given, last)
        except TimeoutError:
            raise UsageError(
                f"the log was not read within {_SECONDS:.0f} s: foldmq why has no limit"
            ) from None


async def _stories(
    source: LogSource, given: dict[str, str | None], last: int
) -> list[MessageStory]:
    """Return the histories of the messages; raises NotFound if there are none."""
    wanted: dict[str, Any] = {"client": given["client"], "last": last}
    topic, place = given["topic"], given["position"]
    if topic is not None:
        check_filter(topic)
        wanted |= {"matches": topic_matcher(topic), "topic_filter": topic}
    if place is not None:
        moment = parse_point(place)
        if moment.position is None:
            raise UsageError("a position is a number such as 12.3")
        first = position(sequence_of(moment.position), 0)
        wanted["ref"] = await message_at(source, moment.position if "." in place else first)
    if given["at"] is not None:
        point = await point_at(source, parse_point(given["at"]))
        wanted["until"] = position(point.sequence, point.index)
    found = await find_stories(source, **wanted)
    if not found:
        if topic is None:
            raise NotFound("the log records no such message")
        explanation = await explain_no_message(source, topic, given["client"], wanted.get("until"))
        raise NotFound(f"the log records no such message; {explanation}")
    return found
