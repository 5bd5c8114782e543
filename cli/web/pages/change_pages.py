"""The pages that confirm a change twice, and make it.

The first page describes the change. Its confirmation stores the planned change under a random
number, for the token that confirmed it; the second page makes exactly that change, once, if its
name is typed.
"""

import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import structlog
from aiohttp import web

from cli.commands.bulk_change import ChangeResult
from cli.logs.broker_client import NoAnswer, NoLiveBroker, Refused
from cli.web.pages.middleware import viewer
from cli.web.pages.responses import Site
from cli.web.planned_change import PlannedChange, plan_change
from cli.web.tokens import Grant
from cli.web.web_log_client import WebLogClient
from eventstore.errors import UsageError

_log = structlog.get_logger("foldmq")

_FIELDS: Final = ("do", "client", "older_than", "match", "filter")
_LISTED: Final = 20
_REFUSED: Final = 20
_LIFE: Final = 300.0
"""Maximum seconds between the two confirmations."""
_MAX_ASKED: Final = 100


@dataclass(frozen=True, slots=True)
class _Asked:
    """A change that was confirmed once."""

    change: PlannedChange
    mark: str
    """The token that confirmed it."""
    until: float


class ChangePages:
    """Pages that change something; only tokens with the role operate get them."""

    def __init__(self, link: WebLogClient, site: Site) -> None:
        self._link = link
        self._site = site
        self._asked: dict[str, _Asked] = {}

    def install(self, app: web.Application) -> None:
        """Add the pages."""
        app.router.add_get("/change", self.ask)
        app.router.add_post("/change", self.ask_again)
        app.router.add_post("/change/confirmed", self.make)

    async def ask(self, request: web.Request) -> web.Response:
        """Describe a change and request the first confirmation."""
        if not viewer(request).role.makes_changes:
            raise web.HTTPForbidden(reason="That needs a token with the role operate")
        fields = _given(request.query)
        if fields.get("do") == "purge" and not {"older_than", "match"} & fields.keys():
            return self._page(request, "purge", given=fields)
        change, problem = await self._planned(fields)
        return self._page(request, "first", change=change, given=fields, problem=problem)

    async def ask_again(self, request: web.Request) -> web.Response:
        """Request the second confirmation."""
        fields = _given(await request.post())
        change, problem = await self._planned(fields)
        number = None
        if change is not None:
            number = self._keep(change, viewer(request))
        return self._page(request, "second", change=change, number=number, problem=problem)

    async def make(self, request: web.Request) -> web.Response:
        """Make a change that was confirmed twice."""
        grant = viewer(request)
        form = await request.post()
        number, typed = form.get("number"), form.get("typed")
        held = self._asked.get(str(number))
        if held is None or held.mark != grant.mark or held.until < time.monotonic():
            problem = "This request has expired or was answered already: start again."
            return self._page(request, "done", problem=problem)
        if not isinstance(typed, str) or typed.strip() != held.change.typed:
            problem = "The typed text does not match: nothing was changed."
            return self._page(request, "second", change=held.change, number=number, problem=problem)
        del self._asked[str(number)]
        return await self._carry_out(request, held.change, grant)

    async def _planned(self, fields: Mapping[str, str]) -> tuple[PlannedChange | None, str | None]:
        try:
            return await plan_change(self._link, fields), None
        except (Refused, UsageError) as error:
            return None, str(error)

    def _keep(self, change: PlannedChange, grant: Grant) -> str:
        now = time.monotonic()
        self._asked = {key: pending for key, pending in self._asked.items() if pending.until > now}
        while len(self._asked) >= _MAX_ASKED:
            del self._asked[next(iter(self._asked))]
        number = secrets.token_urlsafe(16)
        self._asked[number] = _Asked(change, grant.mark, now + _LIFE)
        return number

    async def _carry_out(
        self, request: web.Request, change: PlannedChange, grant: Grant
    ) -> web.Response:
        by = f"{grant.name} (web page, from {request.remote or 'unknown'})"
        result = ChangeResult()
        problem = None
        for log, details in change.requests:
            try:
                answer = await self._link.ask_log(log, "change", by=by, **details)
            except Refused as error:
                result.refused.append(str(error))
                continue
            except NoLiveBroker as error:
                problem = str(error)
                if isinstance(error, NoAnswer):
                    problem += "; the change may still be made"
                break
            result.take(answer, log)
        do = change.requests[0][1]["do"]
        _log.info("web page change", by=grant.name, do=do, count=len(result.done))
        return self._page(
            request,
            "done",
            change=change,
            problem=problem,
            done=result.done,
            refused=result.refused[:_REFUSED],
            more_refused=max(0, len(result.refused) - _REFUSED),
            positions=result.positions,
        )

    def _page(self, request: web.Request, step: str, **values: Any) -> web.Response:
        shown: dict[str, Any] = {
            "change": None,
            "given": {},
            "number": None,
            "problem": None,
            "done": None,
        }
        values = {**shown, "refused": [], "more_refused": 0, "positions": {}, **values}
        code = 200 if values["problem"] is None else 400
        return self._site.page(request, "change.html", code, step=step, listed=_LISTED, **values)


def _given(form: Mapping[str, Any]) -> dict[str, str]:
    """Return the parameters of a change; empty ones are omitted."""
    return {key: form[key] for key in _FIELDS if isinstance(form.get(key), str) and form[key]}
