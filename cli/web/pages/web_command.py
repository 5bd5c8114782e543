"""The command ``foldmq web``."""

from pathlib import Path
from typing import Annotated

import typer

from cli.logs.source_flags import SourceFlags, with_broker_flags
from cli.program.help_pages import Program


def register_web_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("web")(_web)


@with_broker_flags
def _web(
    source: SourceFlags,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Address of the web page. [default: the setting web]",
        ),
    ] = None,
    token_file: Annotated[
        Path | None,
        typer.Option(
            "--token-file",
            metavar="FILE",
            help="File with the page's token, created if missing. [default: web.token in the data "
            "directory]",
        ),
    ] = None,
    tokens: Annotated[
        Path | None,
        typer.Option(
            "--tokens",
            metavar="FILE",
            help="File with the tokens of 'foldmq web-token'. [default: web.tokens in the data "
            "directory]",
        ),
    ] = None,
    operate: Annotated[
        bool,
        typer.Option(
            "--operate",
            help="Permit tokens with the role operate to disconnect clients, and to remove "
            "sessions and retained messages.",
        ),
    ] = False,
    fds: Annotated[list[int] | None, typer.Option("--fd", hidden=True)] = None,
) -> None:
    """Serve the web page of a running broker.

    'foldmq serve' does this by default; use this command for a broker on another machine.
    Without --operate the page is read-only.
    """
    # Other commands do not load the packages of the web page.
    from cli.web.pages import server

    server.run_web_server(source, listen, fds or [], token_file, tokens, changes=operate)
