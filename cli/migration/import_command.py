"""The command ``foldmq import``."""

from pathlib import Path
from typing import Annotated

import typer

from cli.program import Program

_app = Program(no_args_is_help=True)

_To = Annotated[
    Path,
    typer.Option("--to", metavar="DIR", help="New directory for the files.", show_default=True),
]


def register_import_command(app: Program) -> None:
    """Add the commands to the program."""
    app.add_typer(_app, name="import", help="Take over the settings and state of another broker.")


@_app.callback()
def _import() -> None:
    """Take over the settings and state of another broker."""


@_app.command("mosquitto")
def _mosquitto(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="mosquitto.conf.", show_default=False)
    ],
    to: _To = Path("foldmq-import"),
    database: Annotated[
        Path | None,
        typer.Option(
            "--database",
            metavar="FILE",
            help="File with Mosquitto's state. [default: mosquitto.db as configured]",
        ),
    ] = None,
    settings_only: Annotated[
        bool,
        typer.Option("--settings-only", help="Take no sessions and no retained messages."),
    ] = False,
) -> None:
    """Take over Mosquitto's settings, sessions and retained messages.

    Writes foldmq.toml, permissions.toml and a data directory into a new directory, and a line on
    stderr for each thing that has no counterpart; if there are any, it exits with 1. Stop Mosquitto
    first: it writes its database when it stops. The password file and the certificates are not
    copied: foldmq reads Mosquitto's. An inconsistent database is refused with code 65, and nothing
    is written.
    """
    from cli.migration import moving

    _finish(moving.import_mosquitto(source, to, database, settings_only=settings_only))


@_app.command("nats")
def _nats(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="nats-server.conf with an mqtt block.", show_default=False
        ),
    ],
    to: _To = Path("foldmq-import"),
) -> None:
    """Take over the mqtt block and the users of NATS Server.

    Writes foldmq.toml, users and permissions.toml into a new directory, and a line on stderr for
    each thing that has no counterpart; if there are any, it exits with 1. Sessions are not taken;
    'foldmq import retained' copies the retained messages.
    """
    from cli.migration import moving

    _finish(moving.import_nats(source, to))


def _finish(complete: bool) -> None:
    if not complete:
        raise typer.Exit(1)
