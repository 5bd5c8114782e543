"""The command ``foldmq salvage``."""

from pathlib import Path
from typing import Annotated

import typer

from cli.program.help_pages import Program


def register_salvage_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("salvage")(_salvage)


def _salvage(
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory with the damaged log.")
    ],
    to: Annotated[Path, typer.Option("--to", metavar="NEWDIR", help="Data directory to create.")],
) -> None:
    """Copy what can be proven of a damaged log.

    Creates a new data directory; the damaged one is only read. Records that are lost are given up,
    and the new log says which; all others are kept.
    """
    from cli.commands import salvage

    salvage.run_salvage(data_dir, to)
