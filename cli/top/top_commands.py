"""``foldmq top``: its flags."""

from typing import Annotated

import typer

from cli.logs.source_flags import SourceFlags, with_broker_flags
from cli.program.help_pages import Program


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
    from cli.top import top_command

    top_command.run_top(source, interval, sort, once=once, as_json=as_json)
