"""Names of persons in the log: sealed, each under a key of its own.

The key of a name is recorded like that of a topic. In the place of the topic is an *entry*, which
no topic of a client is like, as it has a ``+``: ``$+client/~TOKEN/SEALED`` for a client identifier,
``$+user/...`` for a user name. The token is a hash of the key and a random salt, and stands for the
name everywhere else. Without the key the entry says nothing about the name but about how long it
is. An older image of the log may use a key again for another name: the salt is another one then.

Of several logs, each has the token of a client identifier that belongs to it: the hash is repeated
until its partition is that log's.
"""

from __future__ import annotations

import base64
import hashlib
from itertools import count
from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.format.sealing import SALT_BYTES, RecordSeal, new_salt

if TYPE_CHECKING:
    from collections.abc import Callable

CLIENT: Final = "client"
USER: Final = "user"
"""The kinds of names."""
MARK: Final = "~"
"""A token begins with it; a name that does so, too, gets a second one."""
LONGEST_NAME: Final = 32_768
"""Maximum bytes of a name that gets a token, so that an entry is no longer than a topic."""
_ROOT: Final = "$+"
_TOKEN_BYTES: Final = 10
_TOKEN_CHARACTERS: Final = 16
_ALPHABET: Final = frozenset("abcdefghijklmnopqrstuvwxyz234567")
_TOKEN: Final = b"foldmq-token-1"
_SALT: Final = b"name".ljust(SALT_BYTES)
"""The salt of earlier entries, which do not have one."""
_PADDED_TO: Final = 32
_LENGTH_BYTES: Final = 2


class NameEntry(NamedTuple):
    """The parts of an entry."""

    kind: str
    token: str
    sealed: str

    @property
    def shown(self) -> str:
        """The entry for people to read."""
        return f"{self.kind} {self.token}"


def new_entry(kind: str, name: str, is_usable: Callable[[str], bool], key: bytes) -> str:
    """Return the entry of a name of at most ``LONGEST_NAME`` bytes, under a key of its own.

    Its token is the first one that ``is_usable``.
    """
    raw = name.encode("utf-8", "surrogatepass")
    plain = len(raw).to_bytes(_LENGTH_BYTES, "big") + raw
    plain += bytes(-len(plain) % _PADDED_TO)
    salt = new_salt()
    sealed = base64.urlsafe_b64encode(salt + _turned(plain, key, salt)).decode()
    token = next(filter(is_usable, (_token(salt + key, number) for number in count())))
    return f"{_ROOT}{kind}/{token}/{sealed}"


def _token(salted: bytes, number: int) -> str:
    """Return one of the tokens that a key with a salt may stand for, from 0."""
    again = number.to_bytes(hashlib.blake2b.SALT_SIZE, "big")
    digest = hashlib.blake2b(salted, digest_size=_TOKEN_BYTES, person=_TOKEN, salt=again).digest()
    return MARK + base64.b32encode(digest).decode().lower()


def parts_of(topic: str) -> NameEntry | None:
    """Return the parts of an entry; None: it is a topic."""
    if not topic.startswith(_ROOT):
        return None
    kind, _, behind = topic.removeprefix(_ROOT).partition("/")
    token, _, sealed = behind.partition("/")
    return NameEntry(kind, token, sealed)


def name_in(entry: NameEntry, key: bytes) -> str:
    """Return the name that an entry has; raises ValueError if it has none."""
    data, salt = base64.urlsafe_b64decode(entry.sealed), _SALT
    if len(data) % _PADDED_TO == SALT_BYTES:
        salt, data = data[:SALT_BYTES], data[SALT_BYTES:]
    plain = _turned(data, key, salt)
    size = int.from_bytes(plain[:_LENGTH_BYTES], "big")
    return plain[_LENGTH_BYTES : _LENGTH_BYTES + size].decode("utf-8", "surrogatepass")


def topic_shown(topic: str) -> str:
    """Return a topic, or the kind and token of an entry."""
    entry = parts_of(topic)
    return topic if entry is None else entry.shown


def place_of(token: str) -> str:
    """Return what stands for a token where topics are listed."""
    return _ROOT + token


def is_token(name: str) -> bool:
    """Return whether a name in the log is a token."""
    return (
        name.startswith(MARK)
        and len(name) == len(MARK) + _TOKEN_CHARACTERS
        and _ALPHABET.issuperset(name[len(MARK) :])
    )


def _turned(data: bytes, key: bytes, salt: bytes) -> bytes:
    return RecordSeal(salt, lambda _: key).turned(1, 0, data)
