"""``foldmq passwd``: create, change, delete, list and import users of a password file."""

from pathlib import Path
from typing import NamedTuple

from actors.access import passwords
from actors.access.scram import (
    ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    derive_keys,
    render_keys,
)
from cli.common import text as shown
from cli.settings.setting_sources import ConfigError
from cli.users import line_files
from eventstore.errors import NotFound


class Imported(NamedTuple):
    """The result of an import."""

    added: tuple[str, ...]
    kept: tuple[str, ...]
    """Users that already exist with another hash, and are unchanged."""
    weak: int
    """Number of added users with a hash that is faster to guess than argon2."""


class UserSet(NamedTuple):
    """The result of setting a user's password."""

    new: bool
    without_scram: str
    """Why the password has no SCRAM keys; empty if it has, or if none were requested."""


def set_user(path: Path, user: str, password: bytes, iterations: int = ITERATIONS) -> UserSet:
    """Create ``user`` or change the password; a missing file is created (mode 0600).

    ``iterations`` is the cost of the SCRAM keys; 0: there are none. Comments and the order of lines
    are kept. Raises ConfigError for an invalid name or a locked file, and PasswordFileError for an
    invalid line.
    """
    problem = passwords.user_name_problem(user)
    if problem:
        raise ConfigError(f"{_quoted(user)} cannot be used: {problem}")
    if not password:
        raise ConfigError(f"the password of {_quoted(user)} is empty")
    least, most = MIN_ITERATIONS, MAX_ITERATIONS
    if iterations and not least <= iterations <= most:
        raise ConfigError(f"{iterations} SCRAM iterations: must be {least} to {most}")
    line = f"{user}:{passwords.HASHER.hash(password)}"
    without_scram = ""
    if iterations:
        try:
            line += f":{render_keys(derive_keys(password, iterations))}"
        except ValueError as error:
            without_scram = str(error)
    with line_files.locked(path):
        content = _read_if_there(path)
        exists = user in passwords.parse_users(path, content)
        lines = line_files.lines_of(content)
        if exists:
            lines = [line if _names(old, user) else old for old in lines]
        else:
            lines.append(line)
        line_files.write_lines(path, lines)
    return UserSet(not exists, without_scram)


def delete_user(path: Path, user: str) -> None:
    """Delete ``user``.

    Raises NotFound if there is none, ConfigError if the file is locked, PasswordFileError for an
    invalid line.
    """
    with line_files.locked(path):
        content = passwords.read(path)
        if user not in passwords.parse_users(path, content):
            raise NotFound(f"{path} has no user {_quoted(user)}")
        line_files.write_lines(
            path, [line for line in line_files.lines_of(content) if not _names(line, user)]
        )


def list_users(path: Path) -> list[tuple[str, str]]:
    """Return the users in the order of the file, each with the type of its hash.

    Raises PasswordFileError for a file that cannot be read or has an invalid line.
    """
    users = passwords.parse_users(path, passwords.read(path))
    return [(user, passwords.hash_kind(stored)) for user, stored in users.items()]


def import_users(path: Path, source: Path) -> Imported:
    """Add the users of a Mosquitto password file, with their hashes, to the file at ``path``.

    Adds all of them or, after an error, none. Existing users are unchanged. Raises
    PasswordFileError for an invalid line in either file, ConfigError for an invalid name or a
    locked file.
    """
    advice = "the password is not hashed: run mosquitto_passwd -U on a copy of the file"
    theirs = passwords.parse_users(source, passwords.read(source), advice)
    with line_files.locked(path):
        content = _read_if_there(path)
        ours = passwords.parse_users(path, content)
        for user in theirs:
            problem = passwords.user_name_problem(user)
            if problem:
                raise ConfigError(f"{source}: {_quoted(user)} cannot be used: {problem}")
        added = {user: stored for user, stored in theirs.items() if user not in ours}
        if added or not path.exists():
            line_files.write_lines(
                path,
                line_files.lines_of(content)
                + [f"{user}:{stored}" for user, stored in added.items()],
            )
    return Imported(
        added=tuple(added),
        kept=tuple(u for u, stored in theirs.items() if ours.get(u, stored) != stored),
        weak=sum(
            not passwords.is_argon2(passwords.hash_part(user_hash)) for user_hash in added.values()
        ),
    )


def _quoted(user: str) -> str:
    return f"'{shown.escaped(user)}'"


def _read_if_there(path: Path) -> str:
    return passwords.read(path) if path.exists() else ""


def _names(line: str, user: str) -> bool:
    return not line.startswith("#") and passwords.split_entry(line)[0] == user
