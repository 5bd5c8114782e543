"""The command ``foldmq passwd``."""

import getpass
import shlex
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli.common import text
from cli.common.option_groups import with_option_groups
from cli.program.help_pages import Program
from eventstore.errors import UsageError

if TYPE_CHECKING:
    from cli.users.passwd import Imported


def register_passwd_command(app: Program) -> None:
    """Add the command to the program."""
    app.command("passwd")(_passwd)


@dataclass(frozen=True, slots=True)
class _PasswdFlags:
    """The change of a password file."""

    file: Annotated[Path, typer.Argument(metavar="FILE")]
    """Password file, created if missing."""
    user: Annotated[str | None, typer.Argument(metavar="USER")] = None
    """User name."""
    delete: Annotated[bool, typer.Option("--delete")] = False
    """Delete the user."""
    from_stdin: Annotated[bool, typer.Option("--password-stdin")] = False
    """Read the password from the first line of stdin."""
    lists: Annotated[bool, typer.Option("--list")] = False
    """List the users and the types of their hashes."""
    scram: Annotated[bool, typer.Option("--scram/--no-scram")] = True
    """Also store keys for SCRAM-SHA-256 (MQTT 5)."""
    iterations: Annotated[int | None, typer.Option("--scram-iterations", metavar="NUMBER")] = None
    """Cost of the SCRAM keys, which clients pay at each login. Default: 15000."""
    source: Annotated[Path | None, typer.Option("--import", metavar="MOSQUITTO_FILE")] = None
    """Add the users of a Mosquitto password file, with their passwords."""
    reload: Annotated[bool, typer.Option("--reload")] = False
    """Then make the running broker read its settings again."""
    data_dir: Annotated[Path | None, typer.Option("--data-dir", metavar="DIR")] = None
    """Data directory of the broker, for --reload."""
    config: Annotated[Path | None, typer.Option("--config", metavar="FILE")] = None
    """TOML file of the broker's settings, for --reload."""


@with_option_groups
def _passwd(flags: _PasswdFlags) -> None:
    """Manage the users of a password file.

    Creates a user, changes a password, or deletes a user. A running broker applies the changes at
    a reload: with --reload, or by 'foldmq reload', or at SIGHUP.
    """
    # Other commands do not load the code for hashing.
    from actors.access.scram import ITERATIONS
    from cli.users import passwd

    file, name = flags.file, flags.user or ""
    alone = flags.lists or flags.source is not None
    if (flags.lists and flags.source is not None) or alone == (flags.user is not None):
        raise UsageError("give USER, --list or --import")
    if alone and (flags.delete or flags.from_stdin):
        raise UsageError("--delete and --password-stdin need a USER")
    if (alone or flags.delete or not flags.scram) and flags.iterations is not None:
        raise UsageError("--scram-iterations is for setting a password with SCRAM keys")
    if (alone or flags.delete) and not flags.scram:
        raise UsageError("--no-scram is for setting a password")
    if (flags.data_dir is not None or flags.config is not None) and not flags.reload:
        raise UsageError("--data-dir and --config are for --reload")
    if flags.lists:
        for user, kind in passwd.list_users(file):
            typer.echo(f"{text.name(user)} {kind}")
        return
    if flags.source is not None:
        _print_result(file, passwd.import_users(file, flags.source))
    elif flags.delete:
        passwd.delete_user(file, name)
        typer.echo(f"user {text.escaped(name)} deleted from {file}")
    else:
        password = _read_password(from_stdin=flags.from_stdin)
        cost = (ITERATIONS if flags.iterations is None else flags.iterations) if flags.scram else 0
        made = passwd.set_user(file, name, password, cost)
        typer.echo(f"user {text.escaped(name)} {'added to' if made.new else 'changed in'} {file}")
        if made.without_scram:
            typer.echo(f"this password cannot be used with SCRAM-SHA-256: {made.without_scram}")
    _apply(flags)


def _apply(flags: _PasswdFlags) -> None:
    """Make the running broker use the file, or say how."""
    if not flags.reload:
        directory = flags.file.parent
        is_in_data = (directory / "node").exists()
        place = f" --data-dir {shlex.quote(str(directory))}" if is_in_data else ""
        typer.echo(f"a running broker uses it after a reload: foldmq reload{place}")
        return
    from cli.commands import reload as operator_reload
    from cli.logs.source_flags import SourceFlags

    settings: dict[str, object] = (
        {} if flags.data_dir is None else {"data_dir": str(flags.data_dir)}
    )
    operator_reload.reload_settings(SourceFlags(settings, flags.config))


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
