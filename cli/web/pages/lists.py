"""The pages with current lists: sessions, actors, retained messages, receivers."""

import base64
from typing import Any

from aiohttp import web

from cli.commands.actor_list import ACTOR_TYPES
from cli.logs.broker_client import Refused
from cli.logs.log_brokers import unsure_notes
from cli.web.paged_lists import Listed, Listings, Order
from cli.web.pages.middleware import viewer
from cli.web.pages.responses import Site, asked, choice, is_fragment, number
from cli.web.pages.session_at import describe_setters
from cli.web.web_log_client import WebLogClient
from eventstore.display import payload_text
from eventstore.errors import NoLog, UsageError
from eventstore.format.positions import Position, format_position, sequence_of
from eventstore.format.sealing import is_closed
from eventstore.log.message_store import messages_of

_HIGHEST_SESSIONS = ("queued", "queued_bytes", "in_flight", "subscriptions")
_SESSION_ORDERS = (*_HIGHEST_SESSIONS, "client", "offline")
_BY_CLIENT = Order("client", lambda row: str(row["session"]))
_BY_OFFLINE = Order("offline", lambda row: (row["closed_ms"] is None, row["closed_ms"] or 0))
"""Sort key: longest offline first, connected sessions last."""
_ACTOR_ORDERS = ("recent", "busy", "handled", "mailbox", "high_water", "last_active")
_GLOB = frozenset("*?[")
_MAX_PATTERN = 256
_MAX_STARS = 16
_PAYLOAD_SHOWN = 64 * 1024
"""Maximum length shown of a payload: bytes of lines, else characters."""


class Lists:
    """Lists, a page at a time."""

    def __init__(self, link: WebLogClient, site: Site) -> None:
        self._link = link
        self._site = site
        self._listings = Listings(link)

    def install(self, app: web.Application) -> None:
        """Add the pages."""
        app.router.add_get("/sessions", self.sessions)
        app.router.add_get("/actors", self.actors)
        app.router.add_get("/retained", self.retained)
        app.router.add_get("/subscriptions", self.subscriptions)

    async def sessions(self, request: web.Request) -> web.Response:
        """Sessions by name, state, and size."""
        match = asked(request, "match")
        state = choice(request, "state", ("connected", "offline"))
        sort = choice(request, "sort", _SESSION_ORDERS)
        query: dict[str, Any] = {"match": match, "state": state, "sort": sort}
        selection: dict[str, Any] = {}
        if state is not None:
            selection["connected"] = state == "connected"
        if match is None and len(await self._link.logs()) > 1:
            # The sessions of the other logs, for which these stand, are in the list themselves.
            selection["without_logs"] = True
        order: Order | str = sort if sort in _HIGHEST_SESSIONS else _BY_CLIENT
        if sort == "offline":
            order = _BY_OFFLINE
        work = self._by_name(request, "sessions", selection, match, order)
        more = {"highest": sort in _HIGHEST_SESSIONS, "unsure": await self._unsure(request)}
        return await self._site.answer(request, "sessions.html", query, work, **more)

    async def actors(self, request: web.Request) -> web.Response:
        """Actors by type, name, and load."""
        match = asked(request, "match")
        kind = asked(request, "type")
        sort = choice(request, "sort", _ACTOR_ORDERS)
        client = asked(request, "client")
        query: dict[str, Any] = {"match": match, "type": kind, "client": client, "sort": sort}
        selection = {key: query[key] for key in ("type", "client") if query[key] is not None}
        work = self._by_name(request, "actors", selection, match, sort)
        return await self._site.answer(request, "actors.html", query, work, types=ACTOR_TYPES)

    async def _by_name(
        self,
        request: web.Request,
        endpoint: str,
        selection: dict[str, Any],
        match: str | None,
        order: Order | str | None,
    ) -> Listed:
        """Return a page of rows with matching names; raises Refused and UsageError."""
        if match is not None:
            selection = {**selection, "match": _pattern(match)}
        return await self._list(request, endpoint, selection, order)

    async def retained(self, request: web.Request) -> web.Response:
        """Retained messages by filter, and the value of one."""
        topic_filter, topic = asked(request, "filter"), asked(request, "topic")
        listing = value = problem = None
        selection = {} if topic_filter is None else {"filter": topic_filter}
        try:
            listing = await self._list(request, "retained", selection)
            await describe_setters(self._link, listing.rows)
            if topic is not None:
                shown = viewer(request).role.sees_payloads
                value = await self._value(topic, payload=shown)
        except Refused as error:
            if is_fragment(request):
                raise
            problem = str(error)
        return self._site.page(
            request,
            "retained.html",
            200 if listing is not None else 400,
            found=listing,
            query={"filter": topic_filter},
            value=value,
            problem=problem,
            unsure=await self._unsure(request) if listing is not None else [],
        )

    async def _value(self, topic: str, *, payload: bool) -> dict[str, Any]:
        """Return a retained message, with its payload as text if permitted."""
        log, message = await self._link.ask_any("retained.get", topic=topic)
        message["log"] = log
        encoded = message.pop("payload_base64")
        message["text"] = message["lines"] = None
        if not payload:
            return message
        return {**message, **await self._text(message, encoded)}

    async def _text(self, message: dict[str, Any], encoded: str | None) -> dict[str, Any]:
        """Return the payload of a retained message in its display forms."""
        if encoded is not None:
            payload = base64.b64decode(encoded)
        else:
            payload = await self._from_log(message["log"], message["position"])
        return {
            "text": payload_text(payload, _PAYLOAD_SHOWN),
            "lines": None if is_closed(payload) else _as_lines(payload),
            "more": max(0, len(payload) - _PAYLOAD_SHOWN),
        }

    async def _from_log(self, log: str, ref: Position) -> bytes:
        """Return the payload of a message that is too large for a reply."""
        async with self._link.log(log) as source:
            for record in await source.some([sequence_of(ref)]):
                for stored in messages_of(record):
                    if 0 <= ref - stored.first < len(stored.payloads):
                        return stored.payloads[ref - stored.first]
        raise NoLog(f"message {format_position(ref)} is no longer in the log: reload the page")

    async def subscriptions(self, request: web.Request) -> web.Response:
        """Show which clients would receive a message on a topic, and why."""
        topic = asked(request, "topic")
        query = {"topic": topic}
        work = self._list(request, "subscriptions", query) if topic is not None else None
        unsure = await self._unsure(request) if topic is not None else []
        return await self._site.answer(request, "subscriptions.html", query, work, unsure=unsure)

    async def _unsure(self, request: web.Request) -> list[str]:
        """Return what is not certain of the brokers' states; a refresh does not show it."""
        if is_fragment(request):
            return []
        return unsure_notes(await self._link.ask_each("status"))

    async def _list(
        self,
        request: web.Request,
        endpoint: str,
        selection: dict[str, Any],
        order: Order | str | None = None,
    ) -> Listed:
        page = number(request, "page", 0, 1_000_000)
        return await self._listings.find(endpoint, selection, order, asked(request, "list"), page)


def _pattern(text: str) -> str:
    """Return a pattern for a part of a name, or the given pattern; raises UsageError."""
    pattern = text if _GLOB & set(text) else f"*{text}*"
    if len(pattern) > _MAX_PATTERN or pattern.count("*") > _MAX_STARS:
        raise UsageError(
            f"a pattern may have at most {_MAX_PATTERN} characters and {_MAX_STARS} stars, "
            f"this one has {len(pattern):,} and {pattern.count('*'):,}"
        )
    return pattern


def _as_lines(payload: bytes) -> str | None:
    """Return the beginning of a payload if it is plain text of several lines; else None."""
    head = payload[:_PAYLOAD_SHOWN]
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if len(payload) == len(head) or error.start < len(head) - 3:
            return None
        text = head[: error.start].decode("utf-8")
    lines = text.replace("\r\n", "\n").split("\n")
    if len(lines) < 2 or not all(line.replace("\t", " ").isprintable() for line in lines):
        return None
    return "\n".join(lines)
