"""The commands ``foldmq acl``: permissions, looked at from the command line."""

from pathlib import Path
from typing import Annotated, Literal

import typer

_app = typer.Typer(no_args_is_help=True, rich_markup_mode=None, add_completion=False)


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.add_typer(
        _app, name="acl", help="Check the permissions: what a client may do, and by which rule."
    )


@_app.callback()
def _acl() -> None:
    """Check the permissions: what a client may do, and by which rule."""


@_app.command("check")
def _check(
    user: Annotated[str, typer.Argument(help="The user; - for a client without one.")],
    client: Annotated[str, typer.Argument(help="The client id.")],
    action: Annotated[Literal["publish", "subscribe"], typer.Argument(help="What it wants to do.")],
    topic: Annotated[str, typer.Argument(help="The topic, or the topic filter.")],
    permissions: Annotated[
        Path | None,
        typer.Option(
            "--permissions",
            metavar="FILE",
            help="The permission file. [default: the setting permissions]",
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
            help="A group that a token puts the user into; may be given several times.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Say whether somebody may publish or subscribe, and which rule decides.

    Ends with exit code 0 if it is allowed, and 1 if it is not.
    """
    # What reads permissions is not loaded for the other commands.
    from cli.users import acl

    who = None if user == acl.NO_USER else user
    question = acl.Question(who, client, action, topic, groups or ())
    if not acl.check(question, permissions, config, as_json=as_json):
        raise typer.Exit(1)
