"""The server of tools, over standard input and output or HTTP."""

import asyncio
import logging
import os
import socket
import sys
from pathlib import Path
from typing import Any, Final, cast
from urllib.parse import urlsplit

import mcp_types as types
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from cli.common import logging_setup, package_version, text
from cli.common.allowed_hosts import Hosts, is_wildcard
from cli.common.units import Address, address
from cli.logs import next_commands
from cli.logs.source_flags import SourceFlags
from cli.mcp.tool_answers import MAX_BYTES, MAX_ROWS, Page, arguments_of, harmless, printable
from cli.mcp.tools import DATA_NOTE, TOOLS, input_schema
from cli.settings.settings import load_settings
from cli.settings.socket_binding import bind
from cli.web.api.bounds import RequestBounds
from cli.web.api.live_lists import LiveLists
from cli.web.api.operation import Call, Item, Operation
from cli.web.api.page_tokens import continued, list_digest, page_token
from cli.web.api.parameters import ListParams, read_params
from cli.web.api.problem_types import TooDear
from cli.web.api.snapshots import find_snapshot
from cli.web.audit_trail import AuditTrail
from cli.web.own_token import TOKEN_FILE, find_token
from cli.web.tokens import TOKENS_FILE, Grant, Tokens
from cli.web.web_log_client import WebLogClient
from eventstore.errors import NoLog, UsageError
from protocol.errors import FoldmqError

_PATH: Final = "/mcp"
_LARGEST_BODY: Final = 256 * 1024
_STDIO: Final = "stdio"
_SCHEME: Final = "bearer "
_INSTRUCTIONS: Final = (
    "Tools about an MQTT broker and its event log; all of them only read. Positions such as 12.3 "
    "name places in the log; moments are positions, times in UTC, or ages such as 10m. Answers "
    f"have at most {MAX_ROWS} rows and {MAX_BYTES >> 10} KiB; pass next to get more." + DATA_NOTE
)
_GRANT: Final = "foldmq.grant"


class ToolServer:
    """Answers the calls of tools."""

    def __init__(self, link: WebLogClient, *, payloads: bool) -> None:
        self._link = link
        self._payloads = payloads
        self._bounds = RequestBounds()
        self._lists = LiveLists(link)
        self._by_name = {tool.name: tool for tool in TOOLS}
        self.server: Server[Any] = Server(
            "foldmq",
            version=package_version.version,
            instructions=_INSTRUCTIONS,
            on_list_tools=self._list_tools,
            on_call_tool=self._call_tool,
        )

    async def _list_tools(self, _context: Any, _params: Any) -> types.ListToolsResult:
        return types.ListToolsResult(
            tools=[
                types.Tool(
                    name=tool.name,
                    description=tool.doc + DATA_NOTE,
                    input_schema=input_schema(tool, MAX_ROWS),
                    annotations=types.ToolAnnotations(
                        read_only_hint=True,
                        destructive_hint=False,
                        idempotent_hint=True,
                        open_world_hint=False,
                    ),
                )
                for tool in TOOLS
            ]
        )

    async def _call_tool(
        self, context: Any, params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        request = getattr(context, "request", None)
        grant = None if request is None else cast("Grant", request.scope[_GRANT])
        try:
            tool = self._by_name.get(params.name)
            if tool is None:
                raise UsageError(f"there is no tool {text.name(params.name)}")
            payloads = self._payloads and (grant is None or grant.role.sees_payloads)
            self._bounds.take(_STDIO if grant is None else grant.mark)
            answer = await self._answer(tool, arguments_of(params.arguments or {}), payloads)
        except FoldmqError as error:
            return _result({"error": printable(str(error), MAX_BYTES // 4)}, is_error=True)
        return _result(answer)

    async def _answer(
        self, tool: Operation, arguments: dict[str, Any], payloads: bool
    ) -> dict[str, Any]:
        params = read_params(cast("type[ListParams]", tool.params), arguments)
        call = Call(self._link, self._lists, payloads)
        about = list_digest(tool, params)
        token = getattr(params, "next", None)
        if token is not None:
            call, params = continued(call, tool, params, token, about)
        if isinstance(params, ListParams):
            params = params.model_copy(update={"limit": min(params.limit, MAX_ROWS)})
        page = Page(getattr(params, "limit", MAX_ROWS))
        gaps: list[dict[str, Any]] = []
        unsure: list[str] = []
        place, more, as_of = "", False, ""
        pinned: dict[str, Any] = {}
        try:
            async with self._bounds.dear(next_commands.completed(tool.command)):
                snapshot = await find_snapshot(call, tool, params)
                as_of = snapshot.position
                pinned = {name: getattr(snapshot.params, name) for name in tool.moments}
                items = cast("Any", tool.function)(call, snapshot.params)
                try:
                    async for entry in items:
                        if not isinstance(entry, Item):
                            if entry.event == "unsure":
                                unsure += [printable(note) for note in entry.about["unsure"]]
                            else:
                                gaps.append(harmless(entry.about))
                        elif page.add(_shown(entry.value, payloads=payloads)):
                            place = entry.place
                        else:
                            more = True
                            break
                finally:
                    await items.aclose()
        except TooDear:
            if not page.rows:
                raise
            more = True  # what was found so far is an answer: the next page goes on
        following = None
        if more:
            following = page_token({"place": place, "about": about, "moments": pinned})
        answer: dict[str, Any] = {"rows": page.rows, "next": following, "as_of": as_of}
        if unsure:
            answer["unsure"] = unsure
        return {**answer, "gaps": gaps[:MAX_ROWS]} if gaps else answer


def _shown(item: dict[str, Any], *, payloads: bool) -> dict[str, Any]:
    if payloads:
        return item
    return {key: each for key, each in item.items() if key not in ("payload", "payload_base64")}


def _result(answer: dict[str, Any], *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(type="text", text=text.json_line(answer))],
        structured_content=answer,
        is_error=is_error,
    )


class GuardedApp:
    """Lets requests with a valid token through, under the host names and origins of the server."""

    def __init__(self, app: ASGIApp, tokens: Tokens, trail: AuditTrail, hosts: Hosts) -> None:
        self._app = app
        self._tokens = tokens
        self._trail = trail
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] == "http":
            pairs = scope["headers"]
            headers = {key.decode("latin-1"): value.decode("latin-1") for key, value in pairs}
            host, origin = headers.get("host", ""), headers.get("origin")
            if not self._hosts.allows(host):
                await PlainTextResponse("unknown host name", 403)(scope, receive, send)
                return
            if origin is not None and not self._hosts.allows(urlsplit(origin).netloc):
                await PlainTextResponse("foreign origin", 403)(scope, receive, send)
                return
            client = scope.get("client")
            address = client[0] if client else ""
            grant = await self._grant(headers.get("authorization", ""), address)
            if grant is None:
                refusal = PlainTextResponse("a token is required: Authorization: Bearer TOKEN", 401)
                refusal.headers["WWW-Authenticate"] = 'Bearer realm="foldmq"'
                await refusal(scope, receive, send)
                return
            scope = {**scope, _GRANT: grant}
        await self._app(scope, receive, send)

    async def _grant(self, header: str, place: str) -> Grant | None:
        """Return the permissions of a request from an address; None: it has none."""
        if header[: len(_SCHEME)].lower() != _SCHEME:
            return None
        grant = self._tokens.of_token(header[len(_SCHEME) :])
        if grant is None or not grant.role.views:
            self._trail.refused(place, grant, "wrong_token")
            return None
        if not self._tokens.holds(grant):
            self._trail.refused(place, grant, "expired")
            return None
        await self._trail.login(place, grant)
        return grant


def run_mcp_server(
    flags: SourceFlags, listen: str | None, tokens_file: Path | None, *, payloads: bool
) -> None:
    """Serve until the input ends, or over HTTP until SIGTERM or SIGINT.

    Raises UsageError, ConfigError, NoLog, ListenError and TokenError.
    """
    next_commands.select(flags, elsewhere=True)
    settings = load_settings(flags.settings, os.environ, flags.config)
    logging_setup.configure(settings.log_level, settings.log_format)
    logging.getLogger("mcp").setLevel(logging.CRITICAL + 1)
    if listen is None:
        asyncio.run(_serve_stdio(flags, payloads=payloads))
        return
    try:
        place = address(listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None
    data_dir = settings.data_dir
    if not data_dir.is_dir():
        raise NoLog(f"data directory {data_dir} does not exist: its tokens are needed")
    token = find_token(data_dir.absolute() / TOKEN_FILE)
    tokens = Tokens(token, tokens_file or data_dir.absolute() / TOKENS_FILE)
    asyncio.run(_serve_http(flags, place, tokens, payloads=payloads))


async def _serve_stdio(flags: SourceFlags, *, payloads: bool) -> None:
    link = WebLogClient(flags)
    server = ToolServer(link, payloads=payloads).server
    try:
        async with stdio_server() as (read, write):
            await server.run(read, write, server.create_initialization_options())
    finally:
        await link.close()


async def _serve_http(
    flags: SourceFlags, place: Address, tokens: Tokens, *, payloads: bool
) -> None:
    link = WebLogClient(flags)

    async def record(endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Record a login or refusal, in the log of the first broker that answers."""
        return (await link.ask_any(endpoint, **request))[1]

    trail = AuditTrail(record)
    sockets = bind(place, "listen")
    places = [place, *(Address(*sock.getsockname()[:2]) for sock in sockets)]
    names = [socket.getfqdn()] if any(map(is_wildcard, places)) else []
    app = ToolServer(link, payloads=payloads).server.streamable_http_app(
        streamable_http_path=_PATH,
        json_response=True,
        stateless_http=True,
        max_request_body_size=_LARGEST_BODY,
        host="",  # the guard checks hosts and origins
    )
    config = uvicorn.Config(
        GuardedApp(app, tokens, trail, Hosts(places, names)),
        log_config=None,
        log_level=logging.CRITICAL,
        access_log=False,
        lifespan="on",
        server_header=False,
        timeout_graceful_shutdown=2,
    )
    port = sockets[0].getsockname()[1]
    where = f"http://{Address(place.host, port)}{_PATH}"
    sys.stderr.write(f"foldmq: the MCP server is at {where} (asks for a token of the web page)\n")
    sys.stderr.flush()
    try:
        await uvicorn.Server(config).serve(sockets)
    finally:
        await trail.close()
        await link.close()
