"""The users of the server for NATS clients, read from their file.

::

    # one user per line; empty lines and lines that begin with # are ignored
    alice:a password, which may contain a colon
    bob:$2a$11$...
    UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4

A password is in clear text or hashed by bcrypt. An entry that begins with U is the public half of
an nkey: the user proves possession of the other half, and the file contains no secret.

A file in the form of nats-server's configuration also contains the permissions of each user::

    users = [
      { user: plant, password: "...", permissions: {
          publish: { allow: ["plant.>"], deny: "plant.secret" }
          subscribe: ["hall.>", "_INBOX.>"]
      } }
      { nkey: UDXU4R... }
    ]
    default_permissions = { subscribe: ["hall.>", "_INBOX.>"] }

The same may be in ``authorization { ... }``. All names that nats-server has for these are known
here; any other is rejected, since ignoring it could grant a user more than intended.
"""

import base64
import binascii
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NoReturn

from eventstore.display import escaped
from eventstore.edited_files import read_text
from eventstore.errors import EventStoreError
from eventstore.server import config_parser
from eventstore.server.config_parser import Value

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


@dataclass(frozen=True, slots=True)
class NatsPermissions:
    """The permissions of one user."""

    publish: SubjectRules = SubjectRules()
    subscribe: SubjectRules = SubjectRules()
    responses: bool | Mapping[str, object] = False
    """``allow_responses``: whether, or how often and how long, requests may be answered on
    subjects that ``publish`` does not allow."""


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
        permissions: dict[str, object] = {}
        for name in ("publish", "subscribe"):
            subjects: SubjectRules = getattr(self.permissions, name)
            lists = {"allow": [*subjects.allow], "deny": [*subjects.deny, *denied]}
            if rules := {verb: listed for verb, listed in lists.items() if listed}:
                permissions[name] = rules
        if self.permissions.responses:
            permissions["allow_responses"] = self.permissions.responses
        login = {"nkey": self.nkey} if self.nkey else {"user": self.name, "password": self.password}
        return {**login, "permissions": permissions} if permissions else {**login}


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


_BEGINS = re.compile(
    r"(?:\s|#[^\n]*+|//[^\n]*+)*+"
    r"(?:\{|(?:authorization|users|default_permissions)\s*[:=]?\s*[{\[])"
)
_DURATION = re.compile(r"(?:[0-9]+(?:\.[0-9]+)?(?:ns|us|ms|s|m|h))+")


def _names(**names_of: str) -> dict[str, str]:
    """Return the meanings of nats-server's names, of which each meaning has one or several."""
    return {name: meaning for meaning, names in names_of.items() for name in names.split()}


_TOP: Final = _names(users="users", default_permissions="default_permissions")
_USER: Final = _names(
    user="user username",
    password="pass password",  # noqa: S106 - names, not a password
    nkey="nkey",
    permissions="permission permissions authorization",
)
_PERMISSIONS: Final = _names(
    publish="pub publish import",
    subscribe="sub subscribe export",
    allow_responses="allow_responses publish_allow_responses",
)
_SUBJECTS: Final = _names(allow="allow", deny="deny")
_RESPONSES: Final = _names(
    max="max max_msgs max_messages max_responses", expires="expires expiration ttl"
)


def listed_users(block: Mapping[str, Value], path: str) -> Iterator[tuple[NatsUser, int]]:
    """Yield the users of a parsed block of a file, each with its line; raises NatsUsersError."""
    return _Block(path).listed(block)


class _Block:
    """Reads one file, whose name its errors contain."""

    def __init__(self, path: str) -> None:
        self._path = path

    def users(self, text: str) -> Iterator[tuple[NatsUser, int]]:
        try:
            top = config_parser.parse(text)
        except config_parser.NatsConfError as error:
            self._refuse(error.line, str(error))
        if "authorization" in top:
            whole = self._map(top.pop("authorization"), "authorization")
            for value in top.values():
                self._refuse(value.line, "this file may contain nothing but authorization")
            top = whole
        yield from self.listed(top)

    def listed(self, top: Mapping[str, Value]) -> Iterator[tuple[NatsUser, int]]:
        fields = self._fields(top, _TOP)
        default_value = fields.get("default_permissions")
        default = EVERYTHING if default_value is None else self._permissions(default_value)
        for value in self._list(fields["users"], "users") if "users" in fields else ():
            yield self._user(self._map(value, "a user"), value.line, default), value.line

    def _user(self, entry: dict[str, Value], line: int, default: NatsPermissions) -> NatsUser:
        fields = self._fields(entry, _USER)
        allowed = fields.get("permissions")
        permissions = default if allowed is None else self._permissions(allowed)
        texts = {
            name: self._text(fields[name], name)
            for name in ("user", "password", "nkey")
            if name in fields
        }
        nkey = texts.get("nkey")
        if nkey is not None:
            if len(texts) > 1:
                self._refuse(line, "a user has an nkey, or user and password")
            problem = nkey_problem(nkey)
        else:
            problem = name_problem(texts.get("user", ""), texts.get("password", ""))
        if problem:
            self._refuse(line, problem)
        return NatsUser(
            texts.get("user", ""), texts.get("password", ""), nkey or "", permissions=permissions
        )

    def _permissions(self, value: Value) -> NatsPermissions:
        fields = self._fields(self._map(value, "permissions"), _PERMISSIONS)
        nothing = Value({}, value.line)
        responses = fields.get("allow_responses")
        return NatsPermissions(
            publish=self._subjects(fields.get("publish", nothing), queues=False),
            subscribe=self._subjects(fields.get("subscribe", nothing), queues=True),
            responses=False if responses is None else self._responses(responses),
        )

    def _subjects(self, value: Value, *, queues: bool) -> SubjectRules:
        if not isinstance(value.what, dict):
            return SubjectRules(allow=self._list_of_subjects(value, queues=queues))
        return SubjectRules(
            **{
                verb: self._list_of_subjects(subjects, queues=queues)
                for verb, subjects in self._fields(value.what, _SUBJECTS).items()
            }
        )

    def _list_of_subjects(self, value: Value, *, queues: bool) -> tuple[str, ...]:
        """Return subjects: one, or a list of them."""
        items = value.what if isinstance(value.what, list) else [value]
        if not items:
            self._refuse(
                value.line,
                "to a NATS server an empty list of subjects means all of them: leave it out, or "
                'deny ">"',
            )
        for item in items:
            if not _is_permission(name := self._text(item, "a subject"), queues=queues):
                self._refuse(item.line, f'"{escaped(name)}" is not a subject')
        return tuple(self._text(item, "a subject") for item in items)

    def _responses(self, value: Value) -> bool | dict[str, object]:
        if isinstance(value.what, bool):
            return value.what
        fields = self._fields(
            self._map(value, "allow_responses, unless it is true or false,"), _RESPONSES
        )
        responses: dict[str, object] = {}
        for name, field_value in fields.items():
            content = field_value.what
            good = (
                isinstance(content, int) and not isinstance(content, bool)
                if name == "max"
                else isinstance(content, str) and _DURATION.fullmatch(content)
            )
            if not good:
                kind = "a whole number" if name == "max" else 'a time such as "1m"'
                self._refuse(field_value.line, f"{name} of allow_responses must be {kind}")
            responses[name] = content
        return responses or True

    def _fields(self, entries: Mapping[str, Value], names: Mapping[str, str]) -> dict[str, Value]:
        """Return a map by the meaning of its names; reject unknown names."""
        fields: dict[str, Value] = {}
        for name, value in entries.items():
            meaning = names.get(name.lower())
            if meaning is None:
                expected = ", ".join(dict.fromkeys(names.values()))
                self._refuse(value.line, f"{escaped(name)} is not known, expected {expected}")
            if meaning in fields:
                self._refuse(value.line, f"{meaning} occurs twice in a map")
            fields[meaning] = value
        return fields

    def _map(self, value: Value, what: str) -> dict[str, Value]:
        if not isinstance(value.what, dict):
            self._refuse(value.line, f"{what} must be a map in braces {{ }}")
        return value.what

    def _list(self, value: Value, what: str) -> list[Value]:
        if not isinstance(value.what, list):
            self._refuse(value.line, f"{what} must be a list in brackets [ ]")
        return value.what

    def _text(self, value: Value, what: str) -> str:
        if not isinstance(value.what, str):
            self._refuse(value.line, f"{what} must be text: put it in quotes")
        return value.what

    def _refuse(self, line: int, what: str) -> NoReturn:
        raise NatsUsersError(f"{self._path}:{line}: {what}")


def _is_permission(text: str, *, queues: bool) -> bool:
    """Return whether a text is a subject, wildcards included; a queue group may follow it."""
    subject, *queue = text.split(" ") if queues else [text]
    if len(queue) > 1 or not all(queue) or not text.isprintable():
        return False
    tokens = subject.split(".")
    if not all(tokens) or any(letter.isspace() for letter in subject):
        return False
    return ">" not in tokens[:-1]


def read_users(path: Path) -> tuple[NatsUser, ...]:
    """Return the users of a file.

    Raises NatsUsersError when it cannot be read or names no user, or with the invalid line;
    the message contains no password.
    """
    text = read_text(path, "the users of NATS", NatsUsersError)
    users: dict[str, NatsUser] = {}
    users_with_lines = (
        _Block(str(path)).users(text) if _BEGINS.match(text) is not None else _lines(text, path)
    )
    for user, line in users_with_lines:
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
