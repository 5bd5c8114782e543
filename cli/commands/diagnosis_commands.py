"""The commands ``status`` and ``doctor``."""

from typing import Annotated

import typer

from cli.logs.source_flags import SourceFlags, with_broker_flags
from cli.program.common_flags import Json
from cli.program.help_pages import Program


def register_diagnosis_commands(app: Program) -> None:
    """Add the commands to the program."""
    app.command("status")(_status)
    app.command("doctor")(_doctor)


@with_broker_flags
def _status(source: SourceFlags, as_json: Json = False) -> None:
    """Show whether the broker is healthy.

    Exits with 0 if it is ready and with 1 if it is not.
    """
    from cli.commands import status

    if not status.print_status(source, as_json=as_json):
        raise typer.Exit(1)


@with_broker_flags
def _doctor(
    source: SourceFlags,
    about: Annotated[
        str | None,
        typer.Argument(metavar="CLIENT|TOPIC", help="Only this client or topic."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object per problem.")
    ] = False,
) -> None:
    """Find problems, their causes, and what to do.

    Full windows and queues, lost messages, denials, clients that connect again and again or share
    an identifier, QoS 2 exchanges that do not end, slow readers, replicas behind, a disk that runs
    out. Exits with 1 if there are problems, with 0 if there are none or warnings only.
    """
    from cli.commands import doctor

    if not doctor.print_advice(source, about, as_json=as_json):
        raise typer.Exit(1)
