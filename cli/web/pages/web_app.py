"""The web application: all pages behind the middleware, and their shared objects."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from cli.common.allowed_hosts import Hosts
from cli.logs.source_flags import SourceFlags
from cli.web.audit_trail import AuditTrail
from cli.web.background_fold import Histories
from cli.web.log_activities import LogActivities
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
from cli.web.token_audit import TokenAudit
from cli.web.tokens import Tokens
from cli.web.topic_tails import TopicTails
from cli.web.web_log_client import WebLogClient
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
) -> web.Application:
    """Return the application; ``port`` is the listening port.

    ``recorded`` is the file of the recorded tokens; None: tokens are not recorded. ``changes``
    permits tokens with the role operate to make changes.
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
    AccessMiddleware(site, tokens, trail, hosts, port).install(app)
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
