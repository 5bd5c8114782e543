"""Contents of messages that are sealed under keys of persons.

A record with sealed contents has a random *salt*. The key of a record is derived from the salt and
from the keys of all persons that a message is about, so that each of them is needed to open it. A
message is sealed with AES-256-GCM under this key, with the index of its entry as the nonce: a
record that is encoded again has another salt, so no nonce is used twice.

Sealed are all properties but the Message Expiry Interval, and the payload behind them. The sizes
that events have are those of the plain payloads. Three columns of an event say the rest:

========  =======================================================================
column    meaning
========  =======================================================================
keys      the distinct keys, by number; a list of numbers: all of them are needed
key_of    for each message its key, from 1, or 0: not sealed; empty: all have the only one
hidden    bytes of properties that are sealed before each payload; one number if all are equal
========  =======================================================================
"""

from __future__ import annotations

import hashlib
import secrets
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from cryptography.hazmat.primitives.ciphers.aead import AESGCM

    Keys = tuple[int, ...]
    """The numbers of the keys that a message needs, in order; empty: it is not sealed."""

SALT_BYTES: Final = 16
KEY_BYTES: Final = 32
TAG_BYTES: Final = 16
_NONCE_BYTES: Final = 12
_RECORD_KEY: Final = b"foldmq-seal-1"
_SEVERAL: Final = b"foldmq-seal-all"
_CHECK: Final = b"foldmq-key-check"
_EXPIRY_MARK: Final = b"\x02"
_EXPIRY_BYTES: Final = 5


class KeyMissing(Exception):  # noqa: N818 - named for the condition
    """A key that a message needs does not exist, or not any more."""

    def __init__(self, number: int) -> None:
        super().__init__(f"key {number} does not exist")
        self.number = number


class NotSealedHere(ValueError):  # noqa: N818
    """A sealed message was changed, or was sealed under other keys or at another place."""


class SealColumns(NamedTuple):
    """The columns of an event about sealed messages, see above; all empty if none is sealed."""

    keys: Sequence[int | Sequence[int]] = ()
    key_of: Sequence[int] = ()
    hidden: Sequence[int] | int = 0


NOTHING_SEALED: Final = SealColumns()


def new_salt() -> bytes:
    """Return the salt of a new record."""
    return secrets.token_bytes(SALT_BYTES)


def key_check(key: bytes) -> str:
    """Return the hash by which the log fixes a key, in hexadecimal.

    AES-GCM alone would let two keys open the same bytes to two contents.
    """
    return hashlib.blake2b(key, digest_size=32, person=_CHECK).hexdigest()


def split_block(block: bytes) -> tuple[bytes, bytes]:
    """Split the properties of a message into those that stay readable, and those to seal."""
    if block[:1] == _EXPIRY_MARK:
        return block[:_EXPIRY_BYTES], block[_EXPIRY_BYTES:]
    return b"", block


def seal_columns(keys: Sequence[Keys], hidden: Sequence[int]) -> SealColumns:
    """Return the columns for messages with these keys and sizes of sealed properties."""
    distinct = dict.fromkeys(keys)
    distinct.pop((), None)
    if not distinct:
        return NOTHING_SEALED
    numbers = {key: number for number, key in enumerate(distinct, 1)}
    key_of = [numbers.get(key, 0) for key in keys]
    sizes = set(hidden)
    return SealColumns(
        [key[0] if len(key) == 1 else list(key) for key in distinct],
        [] if key_of == [1] * len(keys) else key_of,
        sizes.pop() if len(sizes) == 1 else list(hidden),
    )


def keys_of(columns: SealColumns, count: int) -> list[Keys]:
    """Return the keys of each of ``count`` messages. Raises IndexError for wrong columns."""
    if not columns.keys:
        return [()] * count
    distinct: list[Keys] = [()]
    distinct += [(key,) if isinstance(key, int) else tuple(key) for key in columns.keys]
    return [distinct[number] for number in columns.key_of or [1] * count]


def hidden_of(columns: SealColumns, count: int) -> list[int]:
    """Return the size of the sealed properties of each of ``count`` messages."""
    return [columns.hidden] * count if isinstance(columns.hidden, int) else list(columns.hidden)


def stored_sizes(sizes: Sequence[int], columns: SealColumns) -> list[int]:
    """Return the bytes that each message takes in a record; ``sizes`` are those of the payloads."""
    keys, hidden = keys_of(columns, len(sizes)), hidden_of(columns, len(sizes))
    return [
        size + extra + TAG_BYTES if key else size
        for size, key, extra in zip(sizes, keys, hidden, strict=True)
    ]


class RecordSeal:
    """Seals and opens the messages of one record."""

    def __init__(self, salt: bytes, key: Callable[[int], bytes | None]) -> None:
        """``key`` returns a person's key by its number; None: it does not exist."""
        self._salt = salt
        self._key = key
        self._ciphers: dict[Keys, AESGCM] = {}

    def seal(self, index: int, keys: Keys, hidden: bytes, payload: bytes) -> bytes:
        """Return a message as the record has it. ``index`` is that of its entry in the record.

        Raises KeyMissing.
        """
        if not keys:
            return payload
        return self._cipher(keys).encrypt(_nonce(index), hidden + payload, None)

    def open(self, index: int, keys: Keys, hidden: int, stored: bytes) -> tuple[bytes, bytes]:
        """Return the sealed properties and the payload of a message that is stored.

        ``hidden`` is the size of these properties. Raises KeyMissing and NotSealedHere.
        """
        if not keys:
            return b"", stored
        from cryptography.exceptions import InvalidTag

        try:
            plain = self._cipher(keys).decrypt(_nonce(index), stored, None)
        except InvalidTag:
            raise NotSealedHere(f"entry {index} cannot be opened") from None
        return plain[:hidden], plain[hidden:]

    def _cipher(self, keys: Keys) -> AESGCM:
        cipher = self._ciphers.get(keys)
        if cipher is None:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM

            cipher = self._ciphers[keys] = AESGCM(self._record_key(keys))
        return cipher

    def _record_key(self, keys: Keys) -> bytes:
        found = []
        for number in keys:
            key = self._key(number)
            if key is None:
                raise KeyMissing(number)
            found.append(key)
        own = found[0]
        if len(found) > 1:
            own = hashlib.blake2b(b"".join(found), digest_size=KEY_BYTES, person=_SEVERAL).digest()
        return hashlib.blake2b(
            self._salt, key=own, digest_size=KEY_BYTES, person=_RECORD_KEY
        ).digest()


def _nonce(index: int) -> bytes:
    return index.to_bytes(_NONCE_BYTES, "big")
