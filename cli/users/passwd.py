"""``foldmq passwd``: create, change, delete, list and import users of a password file."""

from pathlib import Path
from typing import NamedTuple

from actors.authn import passwords
from cli.common import text as shown
from cli.settings import ConfigError
from cli.users import line_files


class Imported(NamedTuple):
    """What came of an import."""

    added: tuple[str, ...]
    kept: tuple[str, ...]
    """Users who were there already with another hash; theirs stays."""
    weak: int
    """How many of those added have a hash that is faster to guess than argon2."""


def set_user(path: Path, user: str, password: bytes) -> bool:
    """Create ``user`` or change the password; the file is made when missing (mode 0600).

    Gives whether the user is new. Comments and the order of the lines stay. Raises ConfigError
    for a name that cannot be used or when others keep the file locked, and PasswordFileError for a
    bad line in the file.
    """
    problem = passwords.user_name_problem(user)
    if problem:
        raise ConfigError(f"{_quoted(user)} cannot be used: {problem}")
    if not password:
        raise ConfigError(f"the password of {_quoted(user)} is empty")
    line = f"{user}:{passwords.HASHER.hash(password)}"
    with line_files.locked(path):
        content = _read_if_there(path)
        known = user in passwords.parse_users(path, content)
        lines = line_files.lines_of(content)
        if known:
            lines = [line if _names(old, user) else old for old in lines]
        else:
            lines.append(line)
        line_files.write(path, lines)
    return not known


def delete_user(path: Path, user: str) -> None:
    """Delete ``user``.

    Raises ConfigError when there is none or others keep the file locked, PasswordFileError for a
    bad line.
    """
    with line_files.locked(path):
        content = passwords.read(path)
        if user not in passwords.parse_users(path, content):
            raise ConfigError(f"{path} has no user {_quoted(user)}")
        line_files.write(
            path, [line for line in line_files.lines_of(content) if not _names(line, user)]
        )


def list_users(path: Path) -> list[tuple[str, str]]:
    """Return the users in the order of the file, each with the kind of hash it has.

    Raises PasswordFileError for a file that cannot be read or has a bad line.
    """
    users = passwords.parse_users(path, passwords.read(path))
    return [(user, passwords.kind(stored)) for user, stored in users.items()]


def import_users(path: Path, source: Path) -> Imported:
    """Add the users of a password file of Mosquitto, with their hashes, to the one at ``path``.

    Either all of them are added or, after an error, none. Users who are in ``path`` already stay
    as they are. Raises PasswordFileError for a bad line in either file, ConfigError for a name that
    cannot be used or when others keep the file locked.
    """
    advice = "a password that is not hashed yet: run mosquitto_passwd -U on a copy"
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
            line_files.write(
                path,
                line_files.lines_of(content)
                + [f"{user}:{stored}" for user, stored in added.items()],
            )
    return Imported(
        added=tuple(added),
        kept=tuple(u for u, stored in theirs.items() if ours.get(u, stored) != stored),
        weak=sum(not passwords.is_argon2(stored) for stored in added.values()),
    )


def _quoted(user: str) -> str:
    return f"'{shown.escaped(user)}'"


def _read_if_there(path: Path) -> str:
    return passwords.read(path) if path.exists() else ""


def _names(line: str, user: str) -> bool:
    return not line.startswith("#") and line.partition(":")[0] == user
