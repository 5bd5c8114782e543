"""The command ``foldmq acl``."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.program.common_flags import Json
from cli.program.help_pages import Program

_app = Program(no_args_is_help=True)


def register_acl_command(app: Program) -> None:
    """Add the commands to the program."""
    app.add_typer(_app, name="acl", help="Check the permissions of a client, or import rules.")


@_app.callback()
def _acl() -> None:
    """Check the permissions of a client, or import rules."""


@_app.command("import")
def _import(
    source: Annotated[
        Path, typer.Argument(metavar="FILE", help="acl_file of Mosquitto.", show_default=False)
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="New file to write. [default: standard output]"
        ),
    ] = None,
) -> None:
    """Translate Mosquitto's acl_file to a permission file.

    Lines that cannot be translated, or not exactly, are named on stderr; then it exits with 1.
    """
    from cli.users import acl_import

    if not acl_import.import_acl(source, output):
        raise typer.Exit(1)


@_app.command("check")
def _check(
    user: Annotated[
        str, typer.Argument(metavar="USER", help="User name; - for a client without one.")
    ],
    client: Annotated[str, typer.Argument(metavar="CLIENT", help="Client identifier.")],
    action: Annotated[
        Literal["publish", "subscribe", "history"],
        typer.Argument(
            metavar="ACTION",
            help="Action to check: publish, subscribe, or history, which replays need besides.",
        ),
    ],
    topic: Annotated[
        str, typer.Argument(metavar="TOPIC", help="Topic, or topic filter to subscribe to.")
    ],
    permissions: Annotated[
        Path | None,
        typer.Option(
            "--permissions",
            metavar="FILE",
            help="Permission file. [default: the setting permissions]",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="TOML file with the broker's settings."),
    ] = None,
    groups: Annotated[
        list[str] | None,
        typer.Option(
            "--group",
            metavar="GROUP",
            help="Group of the user from a token. May be repeated.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check whether a client may publish, subscribe, or read the past.

    Prints the rule that decides. Exits with 0 if it is allowed, with 1 if it is denied.
    """
    # Other commands do not load the code for permissions.
    from cli.users import acl

    who = None if user == acl.NO_USER else user
    question = acl.PermissionQuery(who, client, action, topic, groups or ())
    if not acl.check_permission(question, permissions, config, as_json=as_json):
        raise typer.Exit(1)
