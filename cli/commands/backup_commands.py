"""The commands ``foldmq backup`` and ``foldmq restore``."""

from pathlib import Path
from typing import Annotated

import typer

from cli.logs.source_flags import SourceFlags, with_source_flags
from cli.program.help_pages import Program


def register_backup_commands(app: Program) -> None:
    """Add the commands to the program."""
    app.command("backup")(with_source_flags(_backup))
    app.command("restore")(_restore)


def _backup(
    source: SourceFlags,
    target: Annotated[
        str, typer.Argument(metavar="DIR", help="Directory of the backup; -: a tar archive.")
    ],
) -> None:
    """Back up the log of a broker, running or not.

    Every record is checked. A directory with an earlier backup of the log gets only the records
    that it does not have. With -, a tar archive is written to the standard output.
    """
    from cli.commands import backup

    backup.run_backup(source, target)


def _restore(
    source: Annotated[
        str, typer.Argument(metavar="FROM", help="Directory of the backup, tar archive, or -.")
    ],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="NEWDIR", help="Data directory to create.")
    ],
    new_node: Annotated[
        bool,
        typer.Option("--new-node", help="Restore as another node, to run beside the original one."),
    ] = False,
) -> None:
    """Restore a backup into a new data directory.

    Every record is checked. With -, a tar archive is read from the standard input.
    """
    from cli.commands import backup

    backup.run_restore(source, data_dir, new_node=new_node)
