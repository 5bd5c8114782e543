"""The users of the embedded NATS server's clients, from the file that names them.

::

    # one user a line; empty lines and lines that begin with # are left out
    alice:a password, which may hold a colon
    bob:$2a$11$...
    UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4

A password is as it is or hashed by bcrypt. What begins with U is the public half of an nkey: its
owner proves to have the other half, and no secret lies in the file.
"""

from __future__ import annotations

import base64
import binascii
import re
import stat
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from eventstore.errors import EventStoreError
from eventstore.shown import escaped

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

OWN_USER: Final = "foldmq"
"""The name of foldmq's own user, which no other can have."""

_BCRYPT = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_MEANT_AS_BCRYPT = re.compile(r"\$2[abxy]\$")
_NKEY = re.compile(r"[A-Z2-7]{56}")
_SEED = re.compile(r"S[A-Z2-7]{57}")
_USER_PREFIX: Final = 20 << 3
"""What an nkey begins with that is a user's, so that its text begins with U."""


class NatsUsersError(EventStoreError):
    """A file with users for NATS that cannot be read or has a bad line."""

    exit_code = 78


@dataclass(frozen=True, slots=True)
class NatsUser:
    """Somebody who may connect: by name and password, or by the nkey whose public half is given."""

    name: str = ""
    password: str = field(default="", repr=False)
    """As it is, or hashed by bcrypt."""
    nkey: str = ""

    @property
    def hashed(self) -> bool:
        """Whether what stands here lets nobody in who only reads it."""
        return bool(self.nkey or _BCRYPT.fullmatch(self.password))

    def entry(self) -> dict[str, object]:
        """Return the user as the configuration of a NATS server has it."""
        if self.nkey:
            return {"nkey": self.nkey}
        return {"user": self.name, "password": self.password}


def read_users(path: Path) -> tuple[NatsUser, ...]:
    """Return the users of a file.

    Raises NatsUsersError when it cannot be read or names nobody, or with the line that is wrong;
    what it says holds no password.
    """
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise NatsUsersError(f"{path}: cannot read the users of NATS: {error.strerror}") from None
    except UnicodeDecodeError as error:
        at = error.object.count(b"\n", 0, error.start) + 1
        raise NatsUsersError(f"{path}:{at}: not UTF-8 text") from None
    users: dict[str, NatsUser] = {}
    for number, line in enumerate(text.split("\n"), 1):
        entry = line.rstrip("\r")
        if not entry.strip() or entry.startswith("#"):
            continue
        user = _user(entry, f"{path}:{number}")
        if (user.nkey or user.name) in users:
            who = user.nkey or escaped(user.name)
            raise NatsUsersError(f"{path}:{number}: user {who} appears twice")
        users[user.nkey or user.name] = user
    if not users:
        raise NatsUsersError(f"{path}: names no user of NATS: nobody could connect")
    return tuple(users.values())


def readable_by_others(path: Path, users: Sequence[NatsUser]) -> bool:
    """Return whether everybody on this machine can read a password in the file."""
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return bool(mode & stat.S_IROTH) and not all(user.hashed for user in users)


def _user(entry: str, where: str) -> NatsUser:
    name, colon, password = entry.partition(":")
    if not colon:
        return NatsUser(nkey=_nkey(entry.strip(), where))
    problem = None
    if not name or not name.isprintable() or name != name.strip():
        problem = "a user name is not empty, and has no control character and no space at its ends"
    elif name == OWN_USER:
        problem = f"user {OWN_USER} is the broker's own: choose another name"
    elif not password:
        problem = f"the password of user {escaped(name)} is empty"
    elif not password.isprintable():
        problem = f"the password of user {escaped(name)} has a control character"
    elif _MEANT_AS_BCRYPT.match(password) and not _BCRYPT.fullmatch(password):
        problem = (
            f"the password of user {escaped(name)} begins as a bcrypt hash and is none: it is "
            "incomplete, or its cost is not from 04 to 31"
        )
    if problem:
        raise NatsUsersError(f"{where}: {problem}")
    return NatsUser(name, password)


def _nkey(text: str, where: str) -> str:
    """Return the public nkey of a user; the text is not shown, it may be a secret."""
    if _SEED.fullmatch(text):
        raise NatsUsersError(
            f"{where}: this is the secret half of an nkey: what belongs here is the public one, "
            "which begins with U"
        )
    if not (_NKEY.fullmatch(text) and text.startswith("U")):
        raise NatsUsersError(
            f"{where}: expected NAME:PASSWORD, NAME:BCRYPT-HASH or the public nkey of a user, "
            "which begins with U and has 56 characters"
        )
    raw = base64.b32decode(text)
    if raw[0] != _USER_PREFIX or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(
        raw[-2:], "little"
    ):
        raise NatsUsersError(f"{where}: this nkey has a slip: its checksum is not right")
    return text
