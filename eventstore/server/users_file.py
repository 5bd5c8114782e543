"""The users of the server for NATS clients, read from their file.

::

    # one user per line; empty lines and lines that begin with # are ignored
    alice:a password, which may contain a colon
    bob:$2a$11$...
    UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4

A password is in clear text or hashed by bcrypt. An entry that begins with U is the public half of
an nkey: the user proves possession of the other half, and the file contains no secret.

A file in the form of nats-server's configuration also contains the permissions of each user:
:mod:`eventstore.server.user_blocks`.
"""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

from eventstore.display import escaped
from eventstore.server.user import (
    OWN_USER,
    NatsPermissions,
    NatsUser,
    NatsUsersError,
    SubjectRules,
    name_problem,
    nkey_problem,
)
from eventstore.server.user_blocks import is_block, read_block

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

__all__ = [
    "OWN_USER",
    "NatsPermissions",
    "NatsUser",
    "NatsUsersError",
    "SubjectRules",
    "read_users",
    "readable_by_others",
]


def read_users(path: Path) -> tuple[NatsUser, ...]:
    """Return the users of a file.

    Raises NatsUsersError when it cannot be read or names no user, or with the invalid line;
    the message contains no password.
    """
    try:
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise NatsUsersError(f"{path}: cannot read the users of NATS: {error.strerror}") from None
    except UnicodeDecodeError as error:
        at = error.object.count(b"\n", 0, error.start) + 1
        raise NatsUsersError(f"{path}:{at}: not UTF-8 text") from None
    users: dict[str, NatsUser] = {}
    found = read_block(text, str(path)) if is_block(text) else _lines(text, path)
    for user, line in found:
        if user.identity in users:
            raise NatsUsersError(f"{path}:{line}: user {escaped(user.identity)} appears twice")
        users[user.identity] = user
    if not users:
        raise NatsUsersError(f"{path}: contains no user of NATS: no client could connect")
    return tuple(users.values())


def readable_by_others(path: Path, users: Sequence[NatsUser]) -> bool:
    """Return whether all users of this machine can read a password in the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IROTH) and not all(user.hashed for user in users)


def _lines(text: str, path: Path) -> Iterator[tuple[NatsUser, int]]:
    """Yield the users of a file with one user on each line."""
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.rstrip("\r")
        if entry.strip() and not entry.startswith("#"):
            yield _user(entry, f"{path}:{number}"), number


def _user(entry: str, where: str) -> NatsUser:
    name, colon, password = entry.partition(":")
    if not colon:
        return NatsUser(nkey=_nkey(entry.strip(), where))
    problem = name_problem(name, password)
    if problem:
        raise NatsUsersError(f"{where}: {problem}")
    return NatsUser(name, password)


def _nkey(text: str, where: str) -> str:
    """Return the public nkey of a user; the text is not shown, as it may be a secret."""
    problem = nkey_problem(text)
    if problem is None:
        return text
    if problem.startswith("the public nkey"):
        problem = f"expected NAME:PASSWORD, NAME:BCRYPT-HASH or {problem}"
    raise NatsUsersError(f"{where}: {problem}")
