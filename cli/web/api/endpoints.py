"""The API over HTTP: routes of the table of operations, forms of answers, problem details."""

import asyncio
import contextlib
import re
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Any, Final, cast

import structlog
from aiohttp import web
from aiohttp.typedefs import Handler

from cli.logs.next_commands import completed
from cli.logs.topic_flags import check_filter
from cli.web.api.access import ApiAccess
from cli.web.api.bounds import RequestBounds
from cli.web.api.jwt_users import OPERATIONS as OF_USERS
from cli.web.api.jwt_users import JwtGrant
from cli.web.api.live_lists import LiveLists
from cli.web.api.openapi import openapi_document
from cli.web.api.operation import Call, Cost, Item, Operation, StreamMark, refusal
from cli.web.api.operations import BASE, OPERATIONS
from cli.web.api.page_tokens import continued, list_digest, page_token
from cli.web.api.parameters import ListParams, Params, read_params
from cli.web.api.problem_types import (
    BY_NAME,
    CutBefore,
    Forbidden,
    MethodNotAllowed,
    NotAcceptable,
    TooDear,
    problem_details,
    problem_of,
    retry_after,
)
from cli.web.api.publishing import ApiPublisher
from cli.web.api.snapshots import Snapshot, find_snapshot, matches_tag, wait_for
from cli.web.api.streams import EVENT_STREAM, NDJSON, dumps, send_stream
from cli.web.tokens import Grant
from cli.web.web_log_client import WebLogClient
from eventstore.display import PAYLOAD_FIELDS
from eventstore.display import name as display_name
from eventstore.errors import CutOff, NotFound, UsageError
from protocol.errors import FoldmqError

JSON: Final = "application/json"
_PROBLEM: Final = "application/problem+json"
_REGEX: Final = {"id": "{id:(?s:.+)}", "topic": "{topic:(?s:.+)}"}
"""Names in paths may have any characters, also line breaks."""
_FLAG: Final = re.compile(r"--(node|from|to|at|topic|position|session)\b")
_PARAMETERS: Final = {"node": "log"}
_REPEATED: Final = frozenset({"type"})
"""Parameters that may be given several times."""
_PAGE_BYTES: Final = 8 * 1024 * 1024
"""Bytes of payloads after which a page ends."""
_FIRST_SECONDS: Final = 5.0
"""Seconds that the first item of a stream may delay its status."""

log = structlog.get_logger("foldmq")


class ApiEndpoints:
    """Answers the requests below :data:`BASE`."""

    def __init__(self, link: WebLogClient, access: ApiAccess, *, changes: bool = False) -> None:
        """Answer requests; ``changes`` permits tokens with the role operate to publish."""
        self._link = link
        self._changes = changes
        self._access = access
        self._bounds = RequestBounds()
        self._lists = LiveLists(link)
        self._publisher = ApiPublisher(link)
        self._document = dumps(openapi_document(OPERATIONS))

    def install(self, app: web.Application) -> None:
        """Add the routes."""
        for operation in OPERATIONS:
            path = operation.path
            for name, pattern in _REGEX.items():
                path = path.replace(f"{{{name}}}", pattern)
            handler = self._handler(operation)
            if operation.method == "GET":
                app.router.add_get(BASE + path, handler)
            else:
                app.router.add_route(operation.method, BASE + path, handler)
        app.router.add_get(f"{BASE}/openapi.json", self._openapi)
        app.router.add_get(f"{BASE}/problem-types/{{name}}", self._problem_type)

    async def respond(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Return the response to a request below :data:`BASE`; errors are problem details."""
        try:
            preflight = self._access.preflight(request)
            if preflight is not None:
                response: web.StreamResponse = preflight
            else:
                if request.match_info.http_exception is not None:
                    await self._access.grant(request)
                response = await handler(request)
        except web.HTTPMethodNotAllowed as error:
            allowed = ", ".join(sorted(error.allowed_methods))
            response = self._problem(MethodNotAllowed(f"only {allowed} is allowed here"))
            response.headers["Allow"] = allowed
        except web.HTTPException as error:
            if error.status < 400:
                raise
            response = self._problem(NotFound(f"there is no such resource ({error.reason})"))
        except FoldmqError as error:
            response = self._problem(error)
        except Exception as error:
            log.error("web API: request failed", path=request.path, exc_info=error)  # noqa: TRY400
            what = f"the request failed: {type(error).__name__}; see the broker's log"
            response = self._problem(FoldmqError(what))
        if not response.prepared:
            self._access.add_headers(request, response)
        return response

    @staticmethod
    def _problem(error: FoldmqError) -> web.Response:
        details = problem_details(error, sentence(error), BASE)
        response = web.Response(
            status=problem_of(error).status, body=dumps(details), content_type=_PROBLEM
        )
        if wait := retry_after(error):
            response.headers["Retry-After"] = str(wait)
        if response.status == 401:
            response.headers["WWW-Authenticate"] = 'Bearer realm="foldmq"'
        return response

    async def _openapi(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._document, content_type=JSON)

    async def _problem_type(self, request: web.Request) -> web.Response:
        kind = BY_NAME.get(request.match_info["name"])
        if kind is None:
            raise NotFound(f"problem types are {', '.join(BY_NAME)}")
        about = {"type": kind.name, "title": kind.title, "status": kind.status, "doc": kind.doc}
        return web.Response(body=dumps(about), content_type=JSON)

    def _handler(self, operation: Operation) -> Handler:
        async def handle(request: web.Request) -> web.StreamResponse:
            grant = await self._access.grant(request)
            self._bounds.take(grant.mark)
            if why := refusal(grant.role, operation.role, changes=self._changes):
                raise Forbidden(why)
            if isinstance(grant, JwtGrant) and operation.name not in OF_USERS:
                raise Forbidden("a JSON Web Token permits history, last, and messages by position")
            if operation.function is None:
                if request.query:
                    raise UsageError("this has no parameters: the message is the body")
                return await self._publisher.publish(request, grant, BASE)
            return await self._answer(request, operation, grant)

        return handle

    async def _answer(
        self, request: web.Request, operation: Operation, grant: Grant
    ) -> web.StreamResponse:
        offered = (JSON, NDJSON, EVENT_STREAM) if operation.is_list else (JSON,)
        form = accepted(request.headers.get("Accept", ""), offered)
        kind = cast("type[Params]", operation.params)
        params = read_params(kind, _given(request, operation))
        user = grant if isinstance(grant, JwtGrant) else None
        topic_filter = getattr(params, "filter", None)
        if user is not None and topic_filter is not None:
            check_filter(topic_filter)
            if not user.may_ask(topic_filter):
                raise Forbidden(f"no permission to read the past of {display_name(topic_filter)}")
        if params.log is not None:
            names = [name for name in await self._link.logs() if name]
            if params.log not in (names or [self._link.node]):
                raise NotFound(f"there is no log {display_name(params.log)}")
            params = params if names else params.model_copy(update={"log": None})
        permits = user.may_read if user is not None else None
        call = Call(self._link, self._lists, grant.role.sees_payloads, permits)
        token = getattr(params, "next", None)
        about = list_digest(operation, params)
        if token is not None:
            call, params = continued(call, operation, params, token, about)
        if params.after is not None:
            await wait_for(call, params.after)
        try:
            snapshot = await find_snapshot(call, operation, params)
            if form == JSON:
                if matches_tag(request.headers.get("If-None-Match"), snapshot.tag):
                    response: web.StreamResponse = web.Response(status=304)
                    _describe(response, request, operation, snapshot)
                    return response
                body, following = await self._body(call, operation, snapshot, about)
                response = web.Response(body=body, content_type=JSON)
                _describe(response, request, operation, snapshot)
                if following:
                    link = request.rel_url.update_query(next=following)
                    response.headers["Link"] = f'<{link}>; rel="next"'
                return response
            return await self._stream(request, call, operation, snapshot, form, grant)
        except CutOff as error:
            raise await self._with_first(error, params.log) from None

    async def _with_first(self, error: CutOff, name: str | None) -> CutOff:
        """Return an error that says where the log begins now."""
        with contextlib.suppress(FoldmqError):
            if name or not self._link.names:
                async with self._link.log(name if name and self._link.names else "") as source:
                    return CutBefore(str(error), source.begin)
        return error

    async def _body(
        self, call: Call, operation: Operation, snapshot: Snapshot, about: str
    ) -> tuple[bytes, str | None]:
        """Return an answer as JSON, and where the list goes on."""
        if not operation.is_list:
            async with self._slot(operation, snapshot):
                answer = await cast("Any", operation.function)(call, snapshot.params)
            if call.permits is not None and not call.permits(answer["topic"]):
                raise NotFound(f"no message took effect at position {answer['position']}")
            return dumps(answer), None
        params = cast("ListParams", snapshot.params)
        if getattr(params, "follow", False):
            raise NotAcceptable(f"follow: needs Accept: {NDJSON} or {EVENT_STREAM}")
        items: list[Item] = []
        missing: dict[str, list[Any]] = {}
        more, size = False, 0
        try:
            source = _entries(operation, call, params)
            async with self._slot(operation, snapshot), source as entries:
                async for entry in entries:
                    if not isinstance(entry, Item):
                        _note(missing, entry, late=call.start is not None or bool(items))
                        continue
                    if len(items) == params.limit or size >= _PAGE_BYTES:
                        more = True
                        break
                    items.append(entry)
                    size += sum(len(entry.value.get(name) or "") for name in PAYLOAD_FIELDS)
        except TooDear:
            if not items:
                raise
            more = True  # what was found so far is an answer: the next page goes on
        following = None
        if more:
            pinned = {name: getattr(params, name) for name in operation.moments}
            following = page_token({"place": items[-1].place, "about": about, "moments": pinned})
        page: dict[str, Any] = {
            "items": [item.value for item in items],
            "next": following,
            "as_of": snapshot.position,
        }
        page |= missing
        if not operation.is_snapshot and not snapshot.tag:
            page["snapshot"] = False
        return dumps(page), following

    def _slot(
        self, operation: Operation, snapshot: Snapshot
    ) -> contextlib.AbstractAsyncContextManager[None]:
        """Return the context in which an operation may run."""
        if operation.cost is Cost.DEAR or snapshot.tag:
            return self._bounds.dear(completed(operation.command))
        return contextlib.nullcontext()

    async def _stream(
        self,
        request: web.Request,
        call: Call,
        operation: Operation,
        snapshot: Snapshot,
        form: str,
        grant: Grant,
    ) -> web.StreamResponse:
        """Send a list as a stream."""
        resumed_at = request.headers.get("Last-Event-ID")
        if resumed_at and operation.may_follow:
            call = replace(call, start=resumed_at)
        with self._bounds.stream(grant.mark):
            async with _entries(operation, call, snapshot.params) as source:
                first = asyncio.ensure_future(anext(source, None))
                try:
                    async with self._slot(operation, snapshot):
                        await asyncio.wait({first}, timeout=_FIRST_SECONDS)
                    if first.done():
                        first.result()
                    response = web.StreamResponse()
                    response.content_type = form
                    _describe(response, request, operation, snapshot)
                    response.headers.pop("ETag", None)
                    self._access.add_headers(request, response)
                    response.headers["X-Accel-Buffering"] = "no"
                    await response.prepare(request)
                    if request.method == "HEAD":
                        return response
                    entries = self._while_valid(grant, _after(first, source))
                    if operation.cost is Cost.DEAR or snapshot.tag:
                        entries = self._bounds.in_turns(entries)
                    remaining_seconds = self._access.seconds_left(grant)
                    await send_stream(request, response, entries, self._details, remaining_seconds)
                finally:
                    first.cancel()
                    with contextlib.suppress(asyncio.CancelledError, Exception):
                        await first
        return response

    async def _while_valid(
        self, grant: Grant, entries: AsyncIterator[Item | StreamMark]
    ) -> AsyncIterator[Item | StreamMark]:
        """Yield entries until the permissions expire or end; raises Unauthorized then."""
        async for entry in entries:
            self._access.check_again(grant)
            yield entry

    @staticmethod
    def _details(error: Exception) -> dict[str, Any]:
        """Return the problem details of an error in the middle of a stream."""
        if not isinstance(error, FoldmqError):
            log.error("web API: stream failed", exc_info=error)
            error = FoldmqError(f"the request failed: {type(error).__name__}; see the broker's log")
        return problem_details(error, sentence(error), BASE)


def _note(missing: dict[str, list[Any]], mark: StreamMark, *, late: bool) -> None:
    """Note what a page lacks; raise CutOff if a list goes on ``late`` behind deleted records."""
    if mark.event == "unsure":
        missing.setdefault("unsure", []).extend(mark.about["unsure"])
    elif late:
        raise CutOff(f"the records before {mark.about['first']} were deleted")
    else:
        missing.setdefault("gaps", []).append(mark.about)  # it begins later than it was asked to


async def _after(
    first: asyncio.Future[Item | StreamMark | None], following: AsyncIterator[Item | StreamMark]
) -> AsyncIterator[Item | StreamMark]:
    entry = await first
    if entry is not None:
        yield entry
        async for each in following:
            yield each


def _entries(operation: Operation, call: Call, params: Params) -> contextlib.aclosing[Any]:
    """Return the entries of a list that the caller may see, closed at the end."""
    entries = cast("Any", operation.function)(call, params)
    return contextlib.aclosing(
        entries if call.permits is None else _permitted(entries, call.permits)
    )


async def _permitted(entries: Any, permits: Callable[[str], bool]) -> AsyncIterator[Any]:
    async with contextlib.aclosing(entries):
        async for entry in entries:
            if not isinstance(entry, Item) or permits(entry.value["topic"]):
                yield entry


def sentence(error: FoldmqError) -> str:
    """Return the message of an error; what are flags of commands are parameters here."""
    message = str(error)
    if isinstance(error, UsageError):
        about, *command = message.partition("foldmq ")  # the flags of a command are its own
        about = _FLAG.sub(lambda flag: _PARAMETERS.get(flag[1], flag[1]), about)
        message = "".join([about, *command])
    return completed(message)


def accepted(header: str, offered: Sequence[str]) -> str:
    """Return the offered type that a client prefers; raises NotAcceptable.

    Without a preference it is the first one.
    """
    best, quality = "", 0.0
    for part in header.split(",") if header.strip() else ["*/*"]:
        kind, *fields = (field.strip().lower() for field in part.split(";"))
        weight = 1.0
        for field in fields:
            if field.startswith("q="):
                with contextlib.suppress(ValueError):
                    weight = float(field[2:])
        match = next((form for form in offered if _covers(kind, form)), None)
        if match is not None and weight > quality:
            best, quality = match, weight
    if not best:
        raise NotAcceptable(f"the answer exists as {', '.join(offered)}")
    return best


def _covers(kind: str, offered: str) -> bool:
    return kind in ("*/*", offered, offered.partition("/")[0] + "/*")


def _given(request: web.Request, operation: Operation) -> dict[str, Any]:
    """Return the parameters of a request by name; raises UsageError for a repeated one."""
    values_by_name: dict[str, Any] = {
        name: request.match_info[name] for name in operation.path_params
    }
    for name in dict.fromkeys(request.query):
        values = request.query.getall(name)
        if name in values_by_name:
            raise UsageError(f"{name}: is part of the path")
        if name in _REPEATED:
            values_by_name[name] = values
        elif len(values) > 1:
            raise UsageError(f"{name}: is given {len(values)} times")
        else:
            values_by_name[name] = values[0]
    return values_by_name


def _describe(
    response: web.StreamResponse, request: web.Request, operation: Operation, snapshot: Snapshot
) -> None:
    """Add the headers that say which moment an answer is of."""
    response.headers["Foldmq-Position"] = snapshot.position
    if snapshot.tag:
        names = {
            name.removesuffix("_"): getattr(snapshot.params, name) for name in operation.moments
        }
        response.headers["ETag"] = f'"{snapshot.tag}"'
        response.headers["Content-Location"] = str(request.rel_url.update_query(names))
        response.headers["Cache-Control"] = "private, no-cache"
