"""``foldmq passwd``: create, change and delete users in a password file."""

import contextlib
import os
import tempfile
from pathlib import Path

import argon2

from actors import auth
from cli.settings import ConfigError


def set_user(path: Path, user: str, password: bytes) -> bool:
    """Create ``user`` or change the password; the file is made when missing (mode 0600).

    Gives whether the user is new. Comments and the order of the lines stay. Raises ConfigError
    for a name that cannot be used and PasswordFileError for a bad line in the file.
    """
    problem = auth.user_name_problem(user)
    if problem:
        raise ConfigError(f"{user!r} cannot be used: {problem}")
    if not password:
        raise ConfigError(f"the password of {user!r} is empty")
    text = auth.read(path) if path.exists() else ""
    known = user in auth.parse(path, text)
    line = f"{user}:{argon2.PasswordHasher().hash(password)}"
    lines = text.splitlines()
    if known:
        lines = [line if _names(old, user) else old for old in lines]
    else:
        lines.append(line)
    _write(path, lines)
    return not known


def delete_user(path: Path, user: str) -> None:
    """Delete ``user``; raises ConfigError when there is none, PasswordFileError for a bad line."""
    text = auth.read(path)
    if user not in auth.parse(path, text):
        raise ConfigError(f"{path} has no user {user!r}")
    _write(path, [line for line in text.splitlines() if not _names(line, user)])


def _names(line: str, user: str) -> bool:
    return not line.startswith("#") and line.partition(":")[0] == user


def _write(path: Path, lines: list[str]) -> None:
    """Replace the file in one step: a reader or a crash never sees half of it."""
    mode = path.stat().st_mode & 0o777 if path.exists() else 0o600
    # A link is followed, so that the file it points to is replaced and not the link.
    path = path.resolve()
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
