"""A user of the NATS server for clients: credentials and permissions."""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from eventstore.display import escaped
from eventstore.errors import EventStoreError

if TYPE_CHECKING:
    from collections.abc import Mapping

OWN_USER: Final = "foldmq"
"""The name of foldmq's own user, which no other user can have."""

_BCRYPT = re.compile(r"\$2[abxy]\$(0[4-9]|[12][0-9]|3[01])\$[./A-Za-z0-9]{53}")
_MEANT_AS_BCRYPT = re.compile(r"\$2[abxy]\$")
_NKEY = re.compile(r"[A-Z2-7]{56}")
_SEED = re.compile(r"S[A-Z2-7]{57}")
_USER_PREFIX: Final = 20 << 3
"""Prefix byte of a user's nkey, whose text then begins with U."""


class NatsUsersError(EventStoreError):
    """A file with users for NATS cannot be read or has an invalid line."""

    exit_code = 78


@dataclass(frozen=True, slots=True)
class SubjectRules:
    """The subjects that a user may publish or subscribe to; denials take precedence."""

    allow: tuple[str, ...] = ()
    """Allowed subjects; empty: all."""
    deny: tuple[str, ...] = ()

    def entry(self, denied: tuple[str, ...] = ()) -> dict[str, object]:
        """Return the rules for the configuration of a NATS server, with further denied subjects."""
        made: dict[str, object] = {}
        if self.allow:
            made["allow"] = list(self.allow)
        if self.deny or denied:
            made["deny"] = [*self.deny, *denied]
        return made


@dataclass(frozen=True, slots=True)
class NatsPermissions:
    """The permissions of one user."""

    publish: SubjectRules = SubjectRules()
    subscribe: SubjectRules = SubjectRules()
    responses: bool | Mapping[str, object] = False
    """``allow_responses``: whether, or how often and how long, requests may be answered on
    subjects that ``publish`` does not allow."""

    def entry(self, denied: tuple[str, ...] = ()) -> dict[str, object]:
        """Return them for the configuration of a NATS server, with further denied subjects."""
        made: dict[str, object] = {}
        for name, subjects in (("publish", self.publish), ("subscribe", self.subscribe)):
            if rules := subjects.entry(denied):
                made[name] = rules
        if self.responses:
            made["allow_responses"] = self.responses
        return made


EVERYTHING: Final = NatsPermissions()


@dataclass(frozen=True, slots=True)
class NatsUser:
    """A user with a name and password, or with the public half of an nkey."""

    name: str = ""
    password: str = field(default="", repr=False)
    """In clear text, or hashed by bcrypt."""
    nkey: str = ""
    permissions: NatsPermissions = EVERYTHING

    @property
    def identity(self) -> str:
        """The identity of the user: the public nkey or the name."""
        return self.nkey or self.name

    @property
    def hashed(self) -> bool:
        """Whether the entry contains no usable secret: a hash or a public key."""
        return bool(self.nkey or _BCRYPT.fullmatch(self.password))

    def entry(self, denied: tuple[str, ...] = ()) -> dict[str, object]:
        """Return the user for the configuration of a NATS server.

        ``denied`` are further subjects that the user may not publish or subscribe to.
        """
        made: dict[str, object] = (
            {"nkey": self.nkey} if self.nkey else {"user": self.name, "password": self.password}
        )
        if allowed := self.permissions.entry(denied):
            made["permissions"] = allowed
        return made


def name_problem(name: str, password: str) -> str | None:
    """Return the error in a user's name or password, without the password; None: none."""
    if not name or not name.isprintable() or name != name.strip():
        return "a user name must not be empty, contain a control character or have outer spaces"
    if name == OWN_USER:
        return f"user {OWN_USER} is reserved for the broker: choose another name"
    if not password:
        return f"the password of user {escaped(name)} is empty"
    if not password.isprintable():
        return f"the password of user {escaped(name)} has a control character"
    if _MEANT_AS_BCRYPT.match(password) and not _BCRYPT.fullmatch(password):
        return (
            f"the password of user {escaped(name)} begins like a bcrypt hash but is not one: it is "
            "incomplete, or its cost is not from 04 to 31"
        )
    return None


def nkey_problem(text: str) -> str | None:
    """Return the error in the public nkey of a user; None: there is none.

    It does not contain the text itself, which may be a secret.
    """
    if _SEED.fullmatch(text):
        return "this is the secret half of an nkey: use the public one, which begins with U"
    if not (_NKEY.fullmatch(text) and text.startswith("U")):
        return "the public nkey of a user, which begins with U and has 56 characters"
    raw = base64.b32decode(text)
    if raw[0] != _USER_PREFIX or binascii.crc_hqx(raw[:-2], 0) != int.from_bytes(
        raw[-2:], "little"
    ):
        return "this nkey is mistyped: its checksum is wrong"
    return None
