"""Responses with pages and fragments, and the parameters of requests."""

from collections.abc import Awaitable, Mapping
from typing import Any

from aiohttp import web

from cli.logs.broker_client import Refused
from cli.web.pages.render import environment
from cli.web.web_log_client import WebLogClient
from eventstore.display import escaped
from eventstore.errors import UsageError

PAGES = (
    ("/", "Overview"),
    ("/problems", "Problems"),
    ("/sessions", "Sessions"),
    ("/topics", "Topics"),
    ("/retained", "Retained"),
    ("/subscriptions", "Subscriptions"),
    ("/why", "Why"),
    ("/time", "Time"),
    ("/log", "Event log"),
    ("/disk", "Disk"),
    ("/developers", "Developers"),
)

_LATEST_MS = 1 << 45


class Site:
    """Renders templates; a request with ``part=live`` gets only the changing part."""

    def __init__(self, link: WebLogClient, *, changes: bool = False) -> None:
        """Render pages; ``changes`` tells whether operators may make changes."""
        self._link = link
        self._changes = changes
        self._environment = environment()

    def page(
        self, request: web.Request, template: str, code: int = 200, **values: Any
    ) -> web.Response:
        """Return a page, or its changing part."""
        if is_fragment(request):
            return self.part(request, template, code, **values)
        return self._rendered(request, template, code, values)

    def part(
        self, request: web.Request, template: str, code: int = 200, **values: Any
    ) -> web.Response:
        """Return a part of a page."""
        return self._rendered(request, f"parts/{template}", code, values)

    async def answer(
        self,
        request: web.Request,
        template: str,
        query: Mapping[str, Any],
        work: Awaitable[Any] | None,
        **values: Any,
    ) -> web.Response:
        """Return a page with what ``query`` asks for, or with the error in it.

        ``work`` finds it; None: nothing is asked for. A part of a page has no room for an error.
        """
        outcome = problem = None
        try:
            if work is not None:
                outcome = await work
        except (Refused, UsageError) as error:
            if is_fragment(request):
                raise
            problem = str(error)
        code = 200 if problem is None else 400
        return self.page(
            request, template, code, found=outcome, problem=problem, query=query, **values
        )

    def _rendered(
        self, request: web.Request, template: str, code: int, values: Mapping[str, Any]
    ) -> web.Response:
        grant = request.get("grant")
        text = self._environment.get_template(template).render(
            pages=PAGES,
            path=request.path,
            node=self._link.node,
            logs=self._link.names,
            absent=self._link.absent if grant is not None else [],
            again=request.raw_path,
            live_url=_live(request),
            grant=grant,
            may_change=self._changes and grant is not None and grant.role.makes_changes,
            **values,
        )
        # Names may contain surrogates, but only in requests that foldmq's pages do not make.
        body = text.encode("utf-8", "replace")
        return web.Response(status=code, body=body, content_type="text/html", charset="utf-8")

    def error(self, request: web.Request, status: int, sentence: str) -> web.Response:
        """Return a page with an error message."""
        return self.page(request, "error.html", status, sentence=sentence)

    def away(self, request: web.Request, sentence: str) -> web.Response:
        """Return a page that says that the broker is unreachable and reloads itself."""
        return self.page(request, "away.html", 503, sentence=sentence)


async def chosen_log(request: web.Request, link: WebLogClient) -> str:
    """Return the log that a request names; empty if it names none, or there is only one.

    Raises UsageError if there is no such log, and NoLiveBroker.
    """
    name = asked(request, "log")
    log = await link.check_log(name)
    if name is not None and not log and link.names:
        raise UsageError(f"log must be one of {', '.join(link.names)}, not {escaped(name, 40)}")
    return log


def is_fragment(request: web.Request) -> bool:
    """Return whether only the changing part is requested."""
    return request.query.get("part") == "live"


def asked(request: web.Request, key: str) -> str | None:
    """Return a query parameter, or None if it is missing or empty."""
    return request.query.get(key) or None


def number(request: web.Request, key: str, default: int, most: int) -> int:
    """Return a query parameter as a number; raises UsageError."""
    text = asked(request, key)
    if text is None:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 15 and int(text) <= most):
        raise UsageError(f"{key} must be a number from 0 to {most}, not {escaped(text, 40)}")
    return int(text)


def moment_ms(request: web.Request, key: str) -> int | None:
    """Return a query parameter as a time in milliseconds, or None; raises UsageError."""
    return number(request, key, 0, _LATEST_MS) if asked(request, key) is not None else None


def choice(request: web.Request, key: str, allowed: tuple[str, ...]) -> str | None:
    """Return a query parameter that must be one of some values; raises UsageError."""
    value = asked(request, key)
    if value is not None and value not in allowed:
        raise UsageError(f"{key} must be one of {', '.join(allowed)}, not {escaped(value, 40)}")
    return value


def _live(request: web.Request) -> str:
    return str(request.rel_url.update_query(part="live"))
