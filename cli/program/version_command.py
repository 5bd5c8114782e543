"""The command ``foldmq version``."""

import typer

from cli.program.help_pages import Program


def register_version_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("version")(show_version)


def show_version() -> None:
    """Show the version."""
    from cli.common import version

    typer.echo(f"foldmq {version}")
