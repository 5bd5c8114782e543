"""The file with the master key of the key store, from which old generations are destroyed.

The file has two slots of the same size, each a line of text. A new key is written to the free slot
and synced; when the root of its generation is on disk, the slot of the old one is overwritten in
place and synced. So a crash never leaves a file without a key that opens the newest root, and no
copy of an old key is left in the file: it is never renamed or truncated.
"""

from __future__ import annotations

import hashlib
import os
import re
from typing import TYPE_CHECKING, Final

from eventstore.errors import EventStoreError

if TYPE_CHECKING:
    from pathlib import Path

_SLOT_BYTES: Final = 256
_SLOTS: Final = 2
_LINE: Final = re.compile(
    rb"foldmq master key, generation ([0-9]{1,18}): ([0-9a-f]{64}) ([0-9a-f]{16}) *\n"
)
_EMPTY: Final = b"".ljust(_SLOT_BYTES - 1) + b"\n"


class MasterKeyError(EventStoreError):
    """The file with the master key cannot be read or written, or is damaged."""

    exit_code = 78


class MasterKeyFile:
    """The file at a path. Every method raises MasterKeyError."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self) -> dict[int, bytes]:
        """Return the keys by generation, at most two; none if there is no file."""
        try:
            data = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise self._error("cannot be read", error) from None
        found = {}
        for slot in _slots(data):
            parsed = _parsed(slot)
            if parsed is not None:
                found[parsed[0]] = parsed[1]
        if not found and data.strip():
            raise MasterKeyError(f"personal_key_file = {self.path}: has no intact key")
        return found

    def add(self, generation: int, key: bytes) -> None:
        """Store the key of a generation beside that of the one before it."""
        self.read()  # not over a file of another kind
        slots = self._stored()
        free = [at for at, slot in enumerate(slots) if _parsed(slot) is None]
        same = [at for at, slot in enumerate(slots) if _generation(slot) == generation]
        if not free and not same:
            raise MasterKeyError(
                f"personal_key_file = {self.path}: has two keys, of generations "
                f"{' and '.join(str(_generation(slot)) for slot in slots)}: one must be destroyed"
            )
        self._write((same or free)[0], _line(generation, key))

    def destroy(self, generation: int) -> None:
        """Overwrite the key of a generation, if the file has it."""
        for at, slot in enumerate(self._stored()):
            if _generation(slot) == generation:
                self._write(at, _EMPTY)

    def _stored(self) -> list[bytes]:
        try:
            return _slots(self.path.read_bytes())
        except FileNotFoundError:
            return [b""] * _SLOTS
        except OSError as error:
            raise self._error("cannot be read", error) from None

    def _write(self, slot: int, line: bytes) -> None:
        """Overwrite a slot in place, and sync it; a new file is synced with its directory."""
        new = not self.path.exists()
        try:
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                if new:
                    os.pwrite(descriptor, _EMPTY * _SLOTS, 0)
                os.pwrite(descriptor, line, slot * _SLOT_BYTES)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
            if new:
                directory = os.open(self.path.parent, os.O_RDONLY)
                try:
                    os.fsync(directory)
                finally:
                    os.close(directory)
        except OSError as error:
            raise self._error("cannot be written", error) from None

    def _error(self, what: str, error: OSError) -> MasterKeyError:
        return MasterKeyError(f"personal_key_file = {self.path}: {what}: {error.strerror}")


def _slots(data: bytes) -> list[bytes]:
    return [data[at * _SLOT_BYTES : (at + 1) * _SLOT_BYTES] for at in range(_SLOTS)]


def _line(generation: int, key: bytes) -> bytes:
    text = f"foldmq master key, generation {generation}: {key.hex()} {_check(generation, key)}"
    return text.encode().ljust(_SLOT_BYTES - 1) + b"\n"


def _parsed(slot: bytes) -> tuple[int, bytes] | None:
    """Return generation and key of a slot; None: it is empty, or was written in part."""
    found = _LINE.fullmatch(slot)
    if found is None:
        return None
    generation, key = int(found[1]), bytes.fromhex(found[2].decode())
    return (generation, key) if _check(generation, key) == found[3].decode() else None


def _generation(slot: bytes) -> int | None:
    parsed = _parsed(slot)
    return None if parsed is None else parsed[0]


def _check(generation: int, key: bytes) -> str:
    return hashlib.blake2b(b"%d" % generation, key=key, digest_size=8).hexdigest()
