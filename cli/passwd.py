"""``foldmq passwd``: create, change, delete, list and import users of a password file."""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from actors.access import passwords
from cli import text as shown
from cli.settings import ConfigError

_PATIENCE: Final = 5.0
"""Seconds to wait for somebody else who changes the file: that takes milliseconds."""
_LOOK_AGAIN: Final = 0.02


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
    with _locked(path):
        content = _read_if_there(path)
        known = user in passwords.parse(path, content)
        lines = _lines(content)
        if known:
            lines = [line if _names(old, user) else old for old in lines]
        else:
            lines.append(line)
        _write(path, lines)
    return not known


def delete_user(path: Path, user: str) -> None:
    """Delete ``user``.

    Raises ConfigError when there is none or others keep the file locked, PasswordFileError for a
    bad line.
    """
    with _locked(path):
        content = passwords.read(path)
        if user not in passwords.parse(path, content):
            raise ConfigError(f"{path} has no user {_quoted(user)}")
        _write(path, [line for line in _lines(content) if not _names(line, user)])


def list_users(path: Path) -> list[tuple[str, str]]:
    """Give the users in the order of the file, each with the kind of hash it has.

    Raises PasswordFileError for a file that cannot be read or has a bad line.
    """
    users = passwords.parse(path, passwords.read(path))
    return [(user, passwords.kind(stored)) for user, stored in users.items()]


def import_users(path: Path, source: Path) -> Imported:
    """Add the users of a password file of Mosquitto, with their hashes, to the one at ``path``.

    Either all of them are added or, after an error, none. Users who are in ``path`` already stay
    as they are. Raises PasswordFileError for a bad line in either file, ConfigError for a name that
    cannot be used or when others keep the file locked.
    """
    advice = "a password that is not hashed yet: run mosquitto_passwd -U on a copy"
    theirs = passwords.parse(source, passwords.read(source), advice)
    with _locked(path):
        content = _read_if_there(path)
        ours = passwords.parse(path, content)
        for user in theirs:
            problem = passwords.user_name_problem(user)
            if problem:
                raise ConfigError(f"{source}: {_quoted(user)} cannot be used: {problem}")
        added = {user: stored for user, stored in theirs.items() if user not in ours}
        if added or not path.exists():
            _write(path, _lines(content) + [f"{user}:{stored}" for user, stored in added.items()])
    return Imported(
        added=tuple(added),
        kept=tuple(u for u, stored in theirs.items() if ours.get(u, stored) != stored),
        weak=sum(not passwords.is_argon2(stored) for stored in added.values()),
    )


def _quoted(user: str) -> str:
    return f"'{shown.escaped(user)}'"


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Keep others who run this from changing the file meanwhile.

    What is locked is the file, which only those can hold who may read its hashes; one that is to be
    made is not there, so that its directory is locked instead. Each change replaces the file: who
    has waited for a lock looks whether it is still the one of that name. The broker locks nothing.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            held = os.open(path if path.exists() else _real(path).parent, os.O_RDONLY)
        except OSError:
            # Not there, or not to be opened: reading or writing the file says so, if it matters.
            yield
            return
        try:
            _lock(path, held, deadline)
            if _is_of(path, held):
                yield
                return
        finally:
            os.close(held)  # which ends the lock


def _is_of(path: Path, held: int) -> bool:
    """Tell whether what is held is the file of that name; or the directory, while there is none."""
    try:
        now = path.stat()
    except OSError:
        now = _real(path).parent.stat()
    return os.path.samestat(now, os.fstat(held))


def _lock(path: Path, held: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"{path}: somebody else is changing it, or keeps it or its directory locked"
                ) from None
            time.sleep(_LOOK_AGAIN)
        except OSError:
            return  # a file system without locks, such as some over a network: as good as it gets
        else:
            return


def _read_if_there(path: Path) -> str:
    return passwords.read(path) if path.exists() else ""


def _real(path: Path) -> Path:
    # Not resolve(): before Python 3.13 a link to itself is an error of a kind of its own.
    return Path(os.path.realpath(path))


def _lines(content: str) -> list[str]:
    # Not splitlines(): a name may hold what Unicode counts as the end of a line.
    lines = content.split("\n")
    return lines if lines[-1] else lines[:-1]


def _names(line: str, user: str) -> bool:
    return not line.startswith("#") and line.partition(":")[0] == user


def _write(path: Path, lines: list[str]) -> None:
    """Replace the file in one step: a reader or a crash never sees half of it."""
    old = path.stat() if path.exists() else None
    # A link is followed, so that the file it points to is replaced and not the link.
    path = _real(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            if old is not None:
                # The broker's own user may be the only one who can read it, also after root did
                # this; who may not give a file away could not have taken it away either.
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), old.st_uid, old.st_gid)
            os.fchmod(file.fileno(), old.st_mode & 0o777 if old is not None else 0o600)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
