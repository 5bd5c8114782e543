"""The ``top`` command. What it needs to run is imported when it runs."""

import os
import shutil
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from cli.logs.source_flags import SourceFlags, with_broker_flags
from cli.program.help_pages import Program
from eventstore.errors import UsageError

if TYPE_CHECKING:
    from cli.logs.reconnecting_client import ReconnectingClient

ANSWER_SECONDS = 4.0
"""Seconds without a reply until the broker counts as unreachable."""
_WIDTH = 100
"""Width of a frame without a terminal."""


def register_top_commands(app: Program) -> None:
    """Add the command to the program."""
    app.command("top")(_top)


@with_broker_flags
def _top(
    source: SourceFlags,
    interval: Annotated[
        float,
        typer.Option(
            "--interval", metavar="SECONDS", min=0.5, max=3600, help="Interval between polls."
        ),
    ] = 2.0,
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            metavar="KEY",
            help="Sort key of actors: recent, busy, handled, mailbox, high_water or last_active.",
        ),
    ] = "recent",
    once: Annotated[
        bool, typer.Option("--once", help="Print one frame, from two polls, and exit.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON (with --once).")] = False,
) -> None:
    """Monitor a running broker.

    Shows rates, latencies, queues, and the busiest actors and topics. The bottom line shows the
    keys; '?' explains keys and figures.
    """
    import asyncio

    from cli.settings.log_settings import load_log_settings
    from cli.top.columns import ACTOR_SORTS

    if sort not in ACTOR_SORTS:
        raise UsageError(f"--sort must be one of {', '.join(ACTOR_SORTS)}")
    if as_json and not once:
        raise UsageError("--json also needs --once")
    if not (once or all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))):
        raise UsageError("top needs a terminal: give --once to print one frame")
    # Invalid settings are not retried.
    load_log_settings(source.settings, os.environ, source.config)
    asyncio.run(_run(source, interval, sort, once=once, as_json=as_json))


async def _run(
    source: SourceFlags, interval: float, sort: str, *, once: bool, as_json: bool
) -> None:
    from cli.logs.broker_search import open_brokers
    from cli.logs.reconnecting_client import ReconnectingClient

    flags = replace(source, verbose=once and source.verbose)
    link = ReconnectingClient(lambda: open_brokers(flags), answer_seconds=ANSWER_SECONDS)
    try:
        if once:
            await _print(link, interval, sort, as_json=as_json)
        else:
            await link.poll("status", topics=True)
            await _watch(link, interval, sort)
    finally:
        await link.close()


async def _print(link: "ReconnectingClient", interval: float, sort: str, *, as_json: bool) -> None:
    from cli.logs.reconnecting_client import understood
    from cli.top import once

    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else _WIDTH
    with understood():
        await once.run_once(link, interval, sort, width, as_json=as_json)


async def _watch(link: "ReconnectingClient", interval: float, sort: str) -> None:
    # Loading textual takes a quarter of a second.
    from cli.logs.broker_client import NoLiveBroker
    from cli.top.top_app import Top

    app = Top(link, interval, sort)
    # The terminal keeps the mouse, so that names can be selected and copied.
    trouble = await app.run_async(mouse=False)
    if trouble:
        raise NoLiveBroker(trouble)
