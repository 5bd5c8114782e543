"""The command ``foldmq passwd``."""

import getpass
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.common import text
from cli.program.help_pages import Program
from eventstore.errors import UsageError

if TYPE_CHECKING:
    from cli.users.passwd import Imported


def register_passwd_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("passwd")(_passwd)


def _passwd(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="Password file, created if missing.")
    ],
    user: Annotated[str | None, typer.Argument(metavar="USER", help="User name.")] = None,
    delete: Annotated[bool, typer.Option("--delete", help="Delete the user.")] = False,
    from_stdin: Annotated[
        bool,
        typer.Option("--password-stdin", help="Read the password from the first line of stdin."),
    ] = False,
    listing: Annotated[
        bool, typer.Option("--list", help="List the users and the types of their hashes.")
    ] = False,
    scram: Annotated[
        bool,
        typer.Option("--scram/--no-scram", help="Also store keys for SCRAM-SHA-256 (MQTT 5)."),
    ] = True,
    iterations: Annotated[
        int | None,
        typer.Option(
            "--scram-iterations",
            metavar="NUMBER",
            help="Cost of the SCRAM keys, which clients pay at each login. Default: 15000.",
        ),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Option(
            "--import",
            metavar="MOSQUITTO_FILE",
            help="Add the users of a Mosquitto password file, with their passwords.",
        ),
    ] = None,
    reload: Annotated[
        bool,
        typer.Option("--reload", help="Then make the running broker read its settings again."),
    ] = False,
    data_dir: Annotated[
        Path | None,
        typer.Option(
            "--data-dir", metavar="DIR", help="Data directory of the broker, for --reload."
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config", metavar="FILE", help="TOML file of the broker's settings, for --reload."
        ),
    ] = None,
) -> None:
    """Manage the users of a password file.

    Creates a user, changes a password, or deletes a user. A running broker applies the changes at
    a reload: with --reload, or by 'foldmq reload', or at SIGHUP.
    """
    # Other commands do not load the code for hashing.
    from actors.access.scram import ITERATIONS
    from cli.users import passwd

    alone = listing or source is not None
    if (listing and source is not None) or alone == (user is not None):
        raise UsageError("give USER, --list or --import")
    if alone and (delete or from_stdin):
        raise UsageError("--delete and --password-stdin need a USER")
    if (alone or delete or not scram) and (iterations is not None):
        raise UsageError("--scram-iterations is for setting a password with SCRAM keys")
    if (alone or delete) and not scram:
        raise UsageError("--no-scram is for setting a password")
    if (data_dir is not None or config is not None) and not reload:
        raise UsageError("--data-dir and --config are for --reload")
    if listing:
        for name, kind in passwd.list_users(file):
            typer.echo(f"{text.name(name)} {kind}")
        return
    if source is not None:
        _print_result(file, passwd.import_users(file, source))
        _apply(file, data_dir, config, reload=reload)
        return
    name = user or ""
    if delete:
        passwd.delete_user(file, name)
        typer.echo(f"user {text.escaped(name)} deleted from {file}")
        _apply(file, data_dir, config, reload=reload)
        return
    password = _read_password(from_stdin=from_stdin)
    cost = (ITERATIONS if iterations is None else iterations) if scram else 0
    made = passwd.set_user(file, name, password, cost)
    typer.echo(f"user {text.escaped(name)} {'added to' if made.new else 'changed in'} {file}")
    if made.without_scram:
        typer.echo(f"this password cannot be used with SCRAM-SHA-256: {made.without_scram}")
    _apply(file, data_dir, config, reload=reload)


def _apply(file: Path, data_dir: Path | None, config: Path | None, *, reload: bool) -> None:
    """Make the running broker use the file, or say how."""
    if not reload:
        own = (file.parent / "node").exists()  # the file is in a data directory
        place = f" --data-dir {shlex.quote(str(file.parent))}" if own else ""
        typer.echo(f"a running broker uses it after a reload: foldmq reload{place}")
        return
    from cli.commands import reload as operator_reload
    from cli.logs.source_flags import SourceFlags

    given: dict[str, object] = {} if data_dir is None else {"data_dir": str(data_dir)}
    operator_reload.reload_settings(SourceFlags(given, config))


def _print_result(file: Path, imported: "Imported") -> None:
    typer.echo(f"{text.count_of(len(imported.added), 'user')} added to {file}")
    for user in imported.kept:
        typer.echo(f"user {text.name(user)} already exists, password unchanged")
    if imported.weak:
        typer.echo(
            f"{text.count_of(imported.weak, 'password')} hashed as by Mosquitto, which is faster "
            f"to guess than argon2; to rehash one: foldmq passwd {shlex.quote(str(file))} USER"
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
        raise UsageError("the passwords do not match")
    return first.encode("utf-8", "surrogateescape")
