"""The command ``foldmq pseudonym``."""

from pathlib import Path
from typing import Annotated

import typer

from cli.program.help_pages import Program


def register_pseudonym_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("pseudonym")(_pseudonym)


def _pseudonym(
    client: Annotated[str, typer.Argument(metavar="ID", help="Client identifier.")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory of the broker.")
    ] = Path("foldmq-data"),
    cluster_key_file: Annotated[
        Path | None,
        typer.Option(
            "--cluster-key-file",
            metavar="FILE",
            help="For a cluster: its key, instead of a data directory.",
        ),
    ] = None,
) -> None:
    """Show the pseudonym of a client identifier.

    Works for the data directory of a broker with pseudonyms = true, and for the key of a cluster.
    """
    from cli.serve.auth_factory import pseudonym_of

    typer.echo(pseudonym_of(client, data_dir, cluster_key_file))
