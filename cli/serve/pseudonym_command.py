"""The command ``foldmq pseudonym``."""

from pathlib import Path
from typing import Annotated

import typer

from cli.program import Program


def register_pseudonym_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("pseudonym")(_pseudonym)


def _pseudonym(
    client: Annotated[str, typer.Argument(metavar="ID", help="Client identifier.")],
    data_dir: Annotated[
        Path, typer.Option("--data-dir", metavar="DIR", help="Data directory of the broker.")
    ] = Path("foldmq-data"),
) -> None:
    """Show the pseudonym of a client identifier.

    Works for the data directory of a broker with pseudonyms = true.
    """
    from cli.serve.factories import pseudonym_of

    typer.echo(pseudonym_of(client, data_dir))
