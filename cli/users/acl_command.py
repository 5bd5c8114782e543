"""The command ``foldmq acl``."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import typer

from cli.common.option_groups import with_option_groups
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


@dataclass(frozen=True, slots=True)
class QueryFlags:
    """An action of a client, and the permissions."""

    user: Annotated[str, typer.Argument(metavar="USER")]
    """User name; - for a client without one."""
    client: Annotated[str, typer.Argument(metavar="CLIENT")]
    """Client identifier."""
    action: Annotated[Literal["publish", "subscribe", "history"], typer.Argument(metavar="ACTION")]
    """Action to check: publish, subscribe, or history, which replays need besides."""
    topic: Annotated[str, typer.Argument(metavar="TOPIC")]
    """Topic, or topic filter to subscribe to."""
    permissions: Annotated[Path | None, typer.Option("--permissions", metavar="FILE")] = None
    """Permission file. [default: the setting permissions]"""
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE")] = None
    """TOML file with the broker's settings."""
    groups: Annotated[list[str] | None, typer.Option("--group", metavar="GROUP")] = None
    """Group of the user from a token. May be repeated."""

    @property
    def user_name(self) -> str | None:
        """The user; None: the client has no user name."""
        return None if self.user == "-" else self.user


@_app.command("check")
@with_option_groups
def _check(query: QueryFlags, as_json: Json = False) -> None:
    """Check whether a client may publish, subscribe, or read the past.

    Prints the rule that decides. Exits with 0 if it is allowed, with 1 if it is denied.
    """
    # Other commands do not load the code for permissions.
    from cli.users import acl

    if not acl.check_permission(query, as_json=as_json):
        raise typer.Exit(1)
