"""The command ``foldmq mcp``."""

from importlib.util import find_spec
from pathlib import Path
from typing import Annotated

import typer

from cli.common.package_version import install_command
from cli.logs.source_flags import SourceFlags, with_broker_flags
from cli.program.help_pages import Program
from cli.settings.setting_sources import ConfigError


def register_mcp_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("mcp")(_mcp)


@with_broker_flags
def _mcp(
    source: SourceFlags,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen",
            metavar="HOST:PORT",
            help="Serve over HTTP, at the path /mcp, with the tokens of the web page. [default: "
            "standard input and output]",
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
    payloads: Annotated[
        bool, typer.Option("--payloads", help="Show payloads, up to 256 bytes of each.")
    ] = False,
) -> None:
    """Let a language model ask a running broker and its log.

    A server of the Model Context Protocol: tools that explain what happened to a message, list the
    messages of the past, find silent clients and problems. They only read. Needs the packages
    of the extra 'mcp'.
    """
    if find_spec("mcp") is None:
        raise ConfigError(f"foldmq mcp needs more packages: {install_command('mcp', 'mcp')}")
    from cli.mcp import mcp_server

    mcp_server.run_mcp_server(source, listen, tokens, payloads=payloads)
