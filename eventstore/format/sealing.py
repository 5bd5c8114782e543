"""Contents of messages that are sealed under keys, so that destroying a key erases them.

A record with sealed contents has a random *salt*. Parts of its payload area are sealed with AES-256
in counter mode. The counter begins at the salt, and goes on with the offset in the payload area: no
part of the key stream is used twice, and a record that is encoded again has another salt. The
cipher of a key is thus the same for all records: making one takes longer than sealing a message.
Sealing does not change lengths: the offsets and sizes that events have are right whether the
contents can be read or not. The checksum of the record, and with it the chain of the log, covers
the sealed bytes.

In records of an earlier layout, in stored projections and in names, the salt and a key make another
key, under which the counter is the offset alone.

Sealed are the payload and all properties of a message but the Message Expiry Interval.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from eventstore.format.positions import MAX_INDEX, Run, from_runs, to_runs

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers import CipherContext

SealedPart: TypeAlias = Sequence[int]
"""Begin, length and key of a sealed part of the payload area."""
KeyOf: TypeAlias = "Callable[[int], bytes | None]"
"""Returns a key by its number; None: it does not exist."""
CipherOf: TypeAlias = "Callable[[int], CipherContext | None]"
"""Returns the cipher of a key; None: the key does not exist."""
SealedColumns: TypeAlias = "list[list[Run] | int]"
"""Begins, lengths and keys of the sealed parts, as a record has them; one number if all are
equal."""

SALT_BYTES: Final = 16
KEY_BYTES: Final = 32
_RECORD_KEY: Final = b"foldmq-seal-1"
_CONTENT_KEY: Final = b"foldmq-seal-2"
_CHECK: Final = b"foldmq-key-check"
_EXPIRY_MARK: Final = b"\x02"
_EXPIRY_BYTES: Final = 5
_CIPHER_BLOCK: Final = 16
_INTEGERS: Final = [int, int, int]
_COUNTERS: Final = (1 << 8 * SALT_BYTES) - 1


class SealedBytes(bytes):
    """A payload, or a block of properties, that records have sealed.

    Its length is that of the content, also where it cannot be read.
    """

    key: int
    """The number of the key."""
    opened: bool
    """Whether these bytes are the content. Otherwise its key does not exist, or is not known
    here."""
    time_ms: int
    """Time of the record in which it was published, Unix time in milliseconds; 0: not known."""

    @property
    def closed_key(self) -> int:
        """The number of the key without which it cannot be read; 0: it can."""
        return 0 if self.opened else self.key

    @classmethod
    def of(cls, data: bytes, key: int, *, opened: bool, time_ms: int = 0) -> SealedBytes:
        """Return such bytes."""
        made = cls(data)
        made.key = key
        made.opened = opened
        made.time_ms = time_ms
        return made


def is_closed(data: bytes) -> bool:
    """Return whether a payload, or a block of properties, cannot be read."""
    return isinstance(data, SealedBytes) and not data.opened


def filler(size: int, key: int) -> bytes:
    """Return what stands for sealed content that is not opened.

    It depends on nothing but size and key, so that copies and digests can be compared.
    """
    text = b"sealed %d " % key
    return (text * (size // len(text) + 1))[:size]


def covered(area: bytes | memoryview, parts: Mapping[tuple[int, int], int]) -> bytes:
    """Return a payload area with fillers in its sealed parts."""
    shown = bytearray(area)
    for (begin, end), key in parts.items():
        shown[begin:end] = filler(end - begin, key)
    return bytes(shown)


class SealedArea:
    """The payload area of a record with sealed contents."""

    def __init__(self, part_of: Callable[[int, int], bytes]) -> None:
        self._part_of = part_of

    def __getitem__(self, part: slice) -> bytes:
        """Return a part of the area; SealedBytes if it is sealed."""
        return self._part_of(part.start, part.stop)


def part_of(area: memoryview | SealedArea, start: int, stop: int) -> bytes:
    """Return a part of a payload area."""
    part = area[start:stop]
    return part if isinstance(part, bytes) else bytes(part)


def readable_block(block: bytes) -> bytes:
    """Return a block of properties, without those that cannot be read."""
    return block[: first_sealed(block)] if is_closed(block) else block


def new_salt() -> bytes:
    """Return the salt of a new record."""
    return secrets.token_bytes(SALT_BYTES)


def key_check(key: bytes) -> str:
    """Return the hash by which the log fixes a key, in hexadecimal.

    Without it another key would open the same bytes to another content.
    """
    return hashlib.blake2b(key, digest_size=16, person=_CHECK).hexdigest()


def first_sealed(block: bytes) -> int:
    """Return the offset in a block of properties from which it is sealed: behind its expiry."""
    return _EXPIRY_BYTES if block[:1] == _EXPIRY_MARK else 0


def to_columns(parts: Sequence[SealedPart]) -> SealedColumns:
    """Return what a record says of its sealed parts, which are in order."""
    begins, lengths, keys = zip(*parts, strict=True)
    return [to_runs(begins), _column(lengths), _column(keys)]


def _column(numbers: Sequence[int]) -> list[Run] | int:
    first = numbers[0]
    return first if numbers.count(first) == len(numbers) else to_runs(numbers)


def parts_in(columns: Any) -> Iterator[SealedPart]:
    """Yield the parts that :func:`to_columns` took; raises ValueError or TypeError."""
    begins, lengths, keys = columns
    count = _count(begins)
    if count > MAX_INDEX:
        raise ValueError("too many sealed parts")
    return zip(from_runs(begins), _spread(lengths, count), _spread(keys, count), strict=True)


def _spread(column: Any, count: int) -> list[int]:
    if type(column) is int:
        return [column] * count
    if _count(column) != count:
        raise ValueError("columns of different lengths")
    return from_runs(column)


def _count(runs: Any) -> int:
    """Return the number of integers in stored runs, each of which has at least one."""
    count = 0
    for run in runs:
        if type(run) is int:
            count += 1
        elif list(map(type, run)) == _INTEGERS and run[1] > 0:
            count += run[1]
        else:
            raise ValueError("a run of no integers")
    return count


def parts_in_list(parts: Any) -> Iterator[SealedPart]:
    """Yield the parts that a record of the earlier layout has; raises ValueError or TypeError."""
    for part in parts:
        if list(map(type, part)) != _INTEGERS:
            raise ValueError("a sealed part without integers")
        yield part


def sealed_parts(parts: Iterable[Any], size: int) -> dict[tuple[int, int], int]:
    """Return the sealed parts of a payload area of ``size`` bytes: begin and end, and the key.

    Raises ValueError if one is not in the area behind the one before it.
    """
    keys: dict[tuple[int, int], int] = {}
    before = 0
    for begin, length, key in parts:
        if not (before <= begin <= begin + length <= size and key > 0):
            raise ValueError("a sealed part outside the payload area")
        before = begin + length
        keys[begin, before] = key
    return keys


def content_cipher(key: bytes) -> CipherContext:
    """Return the cipher of a key, for one thread at a time."""
    own = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=_CONTENT_KEY)
    return _cipher_with(own.digest())


def _cipher_with(key: bytes) -> CipherContext:
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

    return Cipher(algorithms.AES(key), modes.CTR(bytes(_CIPHER_BLOCK))).encryptor()


def cipher_of(key: KeyOf) -> CipherOf:
    """Return a function that returns the ciphers of keys, each made once."""

    @cache
    def cipher(number: int) -> CipherContext | None:
        own = key(number)
        return None if own is None else content_cipher(own)

    return cipher


class AreaSeal:
    """Seals and opens parts of the payload area of one record."""

    def __init__(self, salt: bytes, cipher: CipherOf) -> None:
        self._first = int.from_bytes(salt, "big")
        self._cipher = cipher

    def turned(self, key: int, begin: int, data: bytes) -> bytes:
        """Return the part of the payload area at an offset sealed, or opened.

        Without its key it is a filler: what was erased a moment ago is not written.
        """
        cipher = self._cipher(key)
        if cipher is None:
            return filler(len(data), key)
        first = (self._first + begin // _CIPHER_BLOCK) & _COUNTERS
        cipher.reset_nonce(first.to_bytes(_CIPHER_BLOCK, "big"))
        before = begin % _CIPHER_BLOCK
        return cipher.update(bytes(before) + data)[before:] if before else cipher.update(data)


class RecordSeal(AreaSeal):
    """Does the same in the earlier layout, in stored projections and for names."""

    def __init__(self, salt: bytes, key: KeyOf) -> None:
        @cache
        def cipher(number: int) -> CipherContext | None:
            own = key(number)
            if own is None:
                return None
            salted = hashlib.blake2b(salt, key=own, digest_size=KEY_BYTES, person=_RECORD_KEY)
            return _cipher_with(salted.digest())

        super().__init__(bytes(SALT_BYTES), cipher)
