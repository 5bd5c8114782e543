"""The command ``foldmq passwd``: who may connect."""

import getpass
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.common import text
from eventstore.errors import UsageError

if TYPE_CHECKING:
    from cli.users.passwd import Imported


def register(app: typer.Typer) -> None:
    """Add the command to the program."""
    app.command("passwd")(_passwd)


def _passwd(
    file: Annotated[Path, typer.Argument(help="Password file; made when there is none.")],
    user: Annotated[str | None, typer.Argument(help="User name.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the user.")] = False,
    from_stdin: Annotated[
        bool, typer.Option("--password-stdin", help="Read the password from stdin's first line.")
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the users and the kinds of their hashes.")
    ] = False,
    source: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="MOSQUITTO_FILE",
            help="Add the users of Mosquitto's password file, with their passwords.",
        ),
    ] = None,
) -> None:
    """Create a user in a password file, change the password, or delete the user.

    The broker takes over what has changed at SIGHUP.
    """
    # Hashing is not loaded for the other commands.
    from cli.users import passwd

    alone = listing or source is not None
    if (listing and source is not None) or alone == (user is not None):
        raise UsageError("give a USER, or --list, or --import")
    if alone and (delete or from_stdin):
        raise UsageError("--delete and --password-stdin go with a USER")
    if listing:
        for name, kind in passwd.list_users(file):
            typer.echo(f"{text.name(name)} {kind}")
        return
    if source is not None:
        _tell(file, passwd.import_users(file, source))
        return
    name = user or ""
    if delete:
        passwd.delete_user(file, name)
        typer.echo(f"user {text.escaped(name)} deleted from {file}")
        return
    new = passwd.set_user(file, name, _read_password(from_stdin=from_stdin))
    typer.echo(f"user {text.escaped(name)} {'added to' if new else 'changed in'} {file}")


def _tell(file: Path, imported: "Imported") -> None:
    typer.echo(f"{text.counted(len(imported.added), 'user')} added to {file}")
    for user in imported.kept:
        typer.echo(f"user {text.name(user)} was there already, the password stays")
    if imported.weak:
        typer.echo(
            f"{text.counted(imported.weak, 'password')} hashed as Mosquitto does it, which is "
            f"faster to guess than argon2; a new one is not: foldmq passwd {file} USER"
        )


def _read_password(*, from_stdin: bool) -> bytes:
    if from_stdin:
        return sys.stdin.buffer.readline().rstrip(b"\r\n")
    try:
        first = getpass.getpass("Password: ")
        again = getpass.getpass("Again: ")
    except EOFError:
        raise UsageError("no password was given") from None
    if first != again:
        raise UsageError("the two passwords differ")
    return first.encode("utf-8", "surrogateescape")
