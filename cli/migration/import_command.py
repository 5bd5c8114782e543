"""The command ``foldmq import``."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import typer

from cli.clients import client_options
from cli.common.option_groups import with_option_groups
from cli.program.help_pages import Program

_app = Program(no_args_is_help=True)
_PORT_AT_END = re.compile(r":[0-9]*$")

_To = Annotated[
    Path,
    typer.Option("--to", metavar="DIR", help="New directory for the files."),
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


@dataclass(frozen=True, slots=True)
class _CopyFlags:
    """The brokers of a copy."""

    source: Annotated[str | None, typer.Argument(metavar="HOST[:PORT]")] = None
    """The broker to copy from, unless --url is."""
    to: Annotated[str, typer.Option("--to-url", metavar="URL", envvar="FOLDMQ_TO_URL")] = (
        "mqtt://127.0.0.1:1883"
    )
    """The broker to copy to: mqtt://user:password@host:port, or mqtts, ws, wss."""
    quiet: Annotated[float, typer.Option("--quiet", metavar="SECONDS", min=0.1)] = 3.0
    """Messages are complete when none came for this long."""


@_app.command("retained")
@with_option_groups
def _retained(copy: _CopyFlags, broker: client_options.BrokerFlags) -> None:
    """Copy the retained messages of a running broker over MQTT.

    Both users need the permission to read #. A topic that has a retained message at the destination
    keeps it. Exits with 1 if a message is not found at the destination afterwards. Flags of the
    connection are about the broker to copy from.
    """
    from cli.clients import connection, option_values
    from cli.clients.client_errors import BadArgumentError
    from cli.common.units import address
    from cli.migration.retained_copy import copy_retained

    source = copy.source
    if (source is None) == (broker.url is None):
        raise BadArgumentError("name the broker to copy from: HOST[:PORT] or --url")
    if source is not None:
        named = source if _PORT_AT_END.search(source) else f"{source}:{broker.port or 0}"
        try:
            place = address(named)
        except ValueError as error:
            raise BadArgumentError(f"{source}: {error}") from None
        broker = replace(broker, host=place.host, port=place.port or None)
    level = None if broker.version is None else option_values.choose_level(broker.version, [])
    origin = connection.target_of(broker)
    destination = connection.target_of(client_options.BrokerFlags(url=copy.to))
    _finish(copy_retained(origin, level, destination, copy.quiet))


def _finish(complete: bool) -> None:
    if not complete:
        raise typer.Exit(1)
