"""``foldmq web``: serves the page, alone or as a child process of the broker."""

import asyncio
import contextlib
import logging
import os
import signal
import socket
import sys
from collections.abc import AsyncIterator, Collection, Iterable
from pathlib import Path
from typing import Any

import structlog
from aiohttp import web

from cli.common import logging_setup
from cli.common.allowed_hosts import Hosts, is_wildcard
from cli.common.units import Address, address
from cli.logs import next_commands
from cli.logs.source_flags import SourceFlags
from cli.settings.broker_child import belong_to_the_broker, watch_stdin
from cli.settings.settings import load_settings
from cli.settings.socket_binding import bind
from cli.web.activity_reader import LogActivities
from cli.web.api.endpoints import ApiEndpoints
from cli.web.api.jwt_users import JwtUsers
from cli.web.audit_trail import RECORDED_FILE, AuditTrail, TokenAudit
from cli.web.background_fold import Histories
from cli.web.own_token import TOKEN_FILE, Token, find_token
from cli.web.pages.change_pages import ChangePages
from cli.web.pages.lists import Lists
from cli.web.pages.middleware import AccessMiddleware
from cli.web.pages.overview import Pages
from cli.web.pages.responses import Site
from cli.web.pages.session import SessionPages
from cli.web.pages.timeline import TimePages
from cli.web.pages.topics import TopicPages
from cli.web.pages.why_page import WhyPage
from cli.web.samples import Samples
from cli.web.state_diffs import StateDiffs
from cli.web.tokens import TOKENS_FILE, Tokens
from cli.web.topic_tails import TopicTails
from cli.web.web_log_client import WebLogClient
from eventstore.errors import NoLog, UsageError
from eventstore.task_cancellation import end_tasks

_STATIC = Path(__file__).parents[1] / "static"
_LARGEST_FORM = 16 * 1024


def make_app(
    flags: SourceFlags,
    tokens: Tokens,
    recorded: Path | None,
    hosts: Hosts,
    port: int,
    *,
    changes: bool = False,
    api_origins: Collection[str] | None = None,
    api_users: JwtUsers | None = None,
) -> web.Application:
    """Return the application; ``port`` is the listening port.

    ``recorded`` is the file of the recorded tokens; None: tokens are not recorded. ``changes``
    permits tokens with the role operate to make changes. ``api_origins`` are the origins of other
    pages that may use the API; None: there is no API. ``api_users`` have JSON Web Tokens for it.
    """
    link = WebLogClient(flags)

    async def record(endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Record an event of the page, in the log of the first broker that answers."""
        return (await link.ask_any(endpoint, **request))[1]

    app = web.Application(client_max_size=_LARGEST_FORM)
    site = Site(link, changes=changes)
    samples = Samples(link)
    histories = Histories(link)
    tails = TopicTails(link)
    activities, diffs = LogActivities(link), StateDiffs(link)
    trail = AuditTrail(record)
    access = AccessMiddleware(site, tokens, trail, hosts, port, api_origins or (), api_users)
    access.install(app)
    if api_origins is not None:
        access.api = ApiEndpoints(link, access.api_access, changes=changes)
        access.api.install(app)
    Pages(link, site, samples, activities).install(app)
    Lists(link, site).install(app)
    SessionPages(link, site, histories).install(app)
    TimePages(link, site, activities, diffs).install(app)
    TopicPages(link, site, activities, tails).install(app)
    WhyPage(link, site).install(app)
    if changes:
        ChangePages(link, site).install(app)
    app.router.add_static("/static", _STATIC)

    async def held(_app: web.Application) -> AsyncIterator[None]:
        keeping = None
        if tokens.file is not None and recorded is not None:
            changed = TokenAudit(tokens.file, recorded, record)
            keeping = asyncio.create_task(changed.keep(), name="trail of tokens")
        yield
        if keeping is not None:
            await end_tasks([keeping])
        await trail.close()
        histories.close()
        diffs.close()
        await activities.close()
        await tails.close()
        await samples.close()
        await link.close()

    app.cleanup_ctx.append(held)
    return app


log = structlog.get_logger("foldmq")

_LONGEST_LINE = 512 * 1024
"""Maximum length of a URL: a name of 65,535 bytes takes three times as many when escaped."""
_LONGEST_FIELD = 16 * 1024
_NICE = 5
_IDLE_CHECKS = 10
"""How often connections are counted in the time after which an idle process ends."""


def run_web_server(
    flags: SourceFlags,
    listen: str | None,
    fds: list[int],
    token_file: Path | None,
    tokens_file: Path | None,
    *,
    changes: bool,
) -> None:
    """Serve until SIGTERM or SIGINT, or until the broker that started this process is gone.

    ``fds`` are listening sockets passed by the broker. ``changes`` permits operators to make
    changes. Raises UsageError, NoLog, ConfigError, ListenError
    and TokenError.
    """
    next_commands.select(flags, elsewhere=True)
    settings = load_settings(flags.settings, os.environ, flags.config)
    logging_setup.configure(settings.log_level, settings.log_format)
    # Malformed HTTP requests do not belong into the broker's log.
    logging.getLogger("aiohttp").setLevel(logging.CRITICAL + 1)
    token = find_token(_token_file(settings.data_dir, token_file))
    if tokens_file is None and settings.data_dir.is_dir():
        tokens_file = settings.data_dir.absolute() / TOKENS_FILE
    tokens = Tokens(token, tokens_file)
    recorded = None
    if tokens_file is not None:
        kept = settings.data_dir if settings.data_dir.is_dir() else tokens_file.parent
        recorded = kept.absolute() / RECORDED_FILE
    if fds:
        belong_to_the_broker(_NICE)
        sockets = [socket.socket(fileno=fd) for fd in fds]
        places = [Address(*listener.getsockname()[:2]) for listener in sockets]
        if settings.web is not None:
            places.append(settings.web)
    else:
        place = _place(listen) if listen is not None else settings.web
        if place is None:
            raise UsageError("the settings disable the web page: give --listen HOST:PORT")
        sockets = bind(place, "listen")
        places = [place, *(Address(*listener.getsockname()[:2]) for listener in sockets)]
        _announce(place, sockets[0].getsockname()[1], token)
    # The machine's full name may need a slow lookup: only where it matters.
    names = [socket.getfqdn()] if any(map(is_wildcard, places)) else []
    app = make_app(
        flags,
        tokens,
        recorded,
        Hosts(places, names),
        sockets[0].getsockname()[1],
        changes=changes,
        api_origins=settings.web_cors if settings.web_api else None,
        api_users=JwtUsers(settings) if settings.web_api_jwt else None,
    )
    asyncio.run(_serve(app, sockets, child=bool(fds), idle=settings.web_idle if fds else 0))


def _place(listen: str) -> Address:
    try:
        return address(listen)
    except ValueError as error:
        raise UsageError(f"--listen: {error}") from None


def _token_file(data_dir: Path, file: Path | None) -> Path:
    if file is not None:
        return file
    if not data_dir.is_dir():
        raise NoLog(
            f"data directory {data_dir} does not exist: give --data-dir, or --token-file for the "
            "page's token"
        )
    return data_dir.absolute() / TOKEN_FILE


def _announce(place: Address, port: int, token: Token) -> None:
    shown = f"http://{Address(place.host, port)}/"
    # Other users may be able to read a file that this is redirected to.
    secret = token.query if sys.stderr.isatty() else f" (asks for the token in {token.file})"
    sys.stderr.write(f"foldmq: the web page is at {shown}{secret}\n")
    sys.stderr.flush()


async def _serve(
    app: web.Application, sockets: Iterable[socket.socket], *, child: bool, idle: float
) -> None:
    """Serve until a signal, the end of the broker, or ``idle`` seconds without a connection."""
    listening = list(sockets)
    runner = web.AppRunner(
        app,
        access_log=None,
        max_line_size=_LONGEST_LINE,
        max_field_size=_LONGEST_FIELD,
        shutdown_timeout=0.5,
    )
    end = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, end.set)
    if child:
        await watch_stdin(end)
    await runner.setup()
    try:
        for listener in listening:
            await web.SockSite(runner, listener).start()
        if not idle:
            await end.wait()
        elif await _is_idle(runner, idle, end):
            # A client that connects now waits for the next process.
            for site in runner.sites:
                await site.stop()
            while _connections(runner) and not await _ends_within(end, 0.1):
                pass
    finally:
        await runner.cleanup()


async def _is_idle(runner: web.AppRunner, idle: float, end: asyncio.Event) -> bool:
    """Return True after ``idle`` seconds without a connection, or False once ``end`` is set."""
    quiet_checks, served = 0, -1
    while quiet_checks < _IDLE_CHECKS:
        if await _ends_within(end, idle / _IDLE_CHECKS):
            return False
        requests = 0 if runner.server is None else runner.server.requests_count
        is_quiet = requests == served and not _connections(runner)
        quiet_checks, served = quiet_checks + 1 if is_quiet else 0, requests
    return True


async def _ends_within(end: asyncio.Event, seconds: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await end.wait()
    return end.is_set()


def _connections(runner: web.AppRunner) -> int:
    return 0 if runner.server is None else len(runner.server.connections)
