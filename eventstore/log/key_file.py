"""The file with the keys of sealed contents. Erasing a key overwrites it in place.

The file begins with a line of text that names the node, and has a slot for each key, in the order
of their numbers, from 1. A slot has the key, the number of the erasure that destroyed it (0: it
exists), and a check of both. Unused keys are stored ahead, so that a new topic needs no write. The
file is never renamed or truncated: no copy of an erased key is left in it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import struct
import weakref
from typing import TYPE_CHECKING, Final

import structlog

from eventstore import durable_files
from eventstore.errors import EventStoreError
from eventstore.format.sealing import KEY_BYTES
from eventstore.partitions import split_log_name

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

_log = structlog.get_logger("foldmq")

KEYS_AHEAD: Final = 1024
"""Keys by which the file grows: the event loop makes and syncs them in less than 10 ms."""
_KEYS_OF_EPOCH: Final = 1_000_000_000
"""The keys of a leader have numbers of this and more, times its epoch."""
_HEAD_BYTES: Final = 128
_SLOT: Final = struct.Struct(">32sQ24s")
_NO_FILE: Final = "is not a file with keys of personal topics"
_LOOKS: Final = 3
_NO_KEY: Final = bytes(KEY_BYTES)
_TITLE: Final = "keys of sealed contents, format 1, node "


class KeyFileError(EventStoreError):
    """The file with the keys cannot be used."""

    exit_code = 78


class KeyDamaged(EventStoreError):  # noqa: N818 - as in eventstore.errors
    """A key that the log uses is damaged or missing: this is not an erasure."""

    exit_code = 65


class KeyFile:
    """One open file. Every method raises KeyFileError."""

    def __init__(self, path: Path, node: str, epoch: int, *, is_shared: bool) -> None:
        """Open the file of a node, or make it.

        ``epoch`` is that of the leader whose keys it has; 0: there is no cluster. ``is_shared``:
        the nodes of a cluster use it, so that it is not locked.
        """
        self._path = path
        self._is_shared = is_shared
        self._first = epoch * _KEYS_OF_EPOCH + 1
        self._head = _head(node)
        try:
            flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
            self._file = os.open(path, flags, 0o600)
        except FileNotFoundError:
            raise KeyFileError(
                f"personal_key_file = {path}: {path.parent} does not exist: create it"
            ) from None
        except OSError as error:
            raise self._error("cannot be opened", error) from None
        self._close = weakref.finalize(self, os.close, self._file)
        try:
            self._slots = self._load()
        except BaseException:
            self._close()
            raise

    def _load(self) -> bytearray:
        try:
            if not self._is_shared:
                fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise KeyFileError(
                f"personal_key_file = {self._path}: another broker uses it: each needs its own"
            ) from None
        try:
            with open(self._file, "rb", closefd=False) as file:
                data = file.read()
        except OSError as error:
            raise self._error("cannot be read", error) from None
        if self._is_unfinished(data):
            if data:
                _log.warning("a file of keys was not finished", personal_key_file=str(self._path))
            self._write(0, self._head)
            try:
                durable_files.sync(self._path.parent)
            except OSError as error:
                raise self._error("its directory cannot be synced", error) from None
        elif data[:_HEAD_BYTES] != self._head:
            raise KeyFileError(f"personal_key_file = {self._path}: {_whose(data)}")
        whole = len(data[_HEAD_BYTES:]) // _SLOT.size * _SLOT.size
        return bytearray(data[_HEAD_BYTES : _HEAD_BYTES + whole])

    def _is_unfinished(self, data: bytes) -> bool:
        """Return whether a file is new, or a crash cut off its head: it never had keys."""
        if len(data) > _HEAD_BYTES or data == self._head:
            return False
        return self._head.startswith(data.rstrip(b"\0"))

    @property
    def end(self) -> int:
        """The first number without a slot."""
        return self._first + len(self._slots) // _SLOT.size

    @property
    def numbers(self) -> range:
        """The numbers that keys have or had."""
        return range(self._first, self.end)

    @property
    def last_erasure(self) -> int:
        """The number of the last erasure that destroyed a key; 0: none did."""
        latest = 0
        for number, (_, erasure, _) in enumerate(_SLOT.iter_unpack(self._slots), self._first):
            if erasure > latest:
                latest = max(latest, self.slot(number)[1])
        return latest

    def slot(self, number: int) -> tuple[bytes | None, int]:
        """Return a key, and the number of the erasure that destroyed it, or 0.

        The key is None if it was erased, does not exist or is damaged.
        """
        if number not in self.numbers:
            return None, 0
        at = (number - self._first) * _SLOT.size
        key, erasure, check = _SLOT.unpack_from(self._slots, at)
        if check != _check(number, key, erasure):
            return None, 0
        return None if erasure else key, erasure

    def extend(self) -> None:
        """Add new keys, on disk when this returns."""
        first = self.end
        slots = b"".join(
            _packed(number, secrets.token_bytes(KEY_BYTES), 0)
            for number in range(first, first + KEYS_AHEAD)
        )
        self._write(_HEAD_BYTES + len(self._slots), slots)
        self._slots += slots

    def erase(self, numbers: Iterable[int], erasure: int) -> None:
        """Destroy keys, on disk when this returns.

        A repetition writes all of them again: after an error of the disk, a sync alone may succeed
        without them.
        """
        for number in numbers:
            if number in self.numbers:
                slot = _packed(number, _NO_KEY, self.slot(number)[1] or erasure)
                at = (number - self._first) * _SLOT.size
                self._write(_HEAD_BYTES + at, slot, sync=False)
                self._slots[at : at + _SLOT.size] = slot
        self._sync()

    def close(self) -> None:
        """Close the file, and forget the keys."""
        self._slots[:] = b""
        self._close()

    def _write(self, at: int, data: bytes, *, sync: bool = True) -> None:
        try:
            while data:
                written = os.pwrite(self._file, data, at)
                at, data = at + written, data[written:]
        except OSError as error:
            raise self._error("cannot be written", error) from None
        if sync:
            self._sync()

    def _sync(self) -> None:
        try:
            os.fsync(self._file)
        except OSError as error:
            raise self._error("cannot be written", error) from None

    def _error(self, what: str, error: OSError) -> KeyFileError:
        return KeyFileError(f"personal_key_file = {self._path}: {what}: {error.strerror}")


class KeyReader:
    """The keys of a running broker, in another process: every key is read when it is needed."""

    def __init__(self, path: Path, node: str) -> None:
        """Read the files of a node, or of the leaders of a cluster; one exists with its keys."""
        self._path = path
        self._node = node
        self._files: dict[int, int] = {}
        """Descriptors by epoch; they are closed with this object."""
        weakref.finalize(self, _close_all, self._files)

    def key(self, number: int) -> bytes | None:
        """Return a key by its number; None: it was erased. Raises KeyFileError or KeyDamaged."""
        epoch, place = epoch_of(number), (number - 1) % _KEYS_OF_EPOCH
        for _ in range(_LOOKS):  # the broker may be overwriting it
            if epoch not in self._files:
                self._files[epoch] = self._open(file_of_epoch(self._path, epoch))
            slot = os.pread(self._files[epoch], _SLOT.size, _HEAD_BYTES + place * _SLOT.size)
            if len(slot) == _SLOT.size:
                key, erasure, check = _SLOT.unpack(slot)
                if check == _check(number, key, erasure):
                    return None if erasure else key
            os.close(self._files.pop(epoch))  # a network file system looks again at the next open
        raise KeyDamaged(
            f"personal_key_file = {self._path}: key {number} is missing or damaged, and was not "
            "erased: restore the file from its newest copy"
        )

    def _open(self, path: Path) -> int:
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise KeyFileError(
                f"personal_key_file = {path}: cannot be opened: {error.strerror}"
            ) from None
        if os.pread(file, _HEAD_BYTES, 0) != _head(self._node):
            os.close(file)
            raise KeyFileError(f"personal_key_file = {path}: is not the file of node {self._node}")
        return file


def _close_all(files: dict[int, int]) -> None:
    for file in files.values():
        os.close(file)


def epoch_of(number: int) -> int:
    """Return the epoch of the leader that made a key; 0: there is no cluster."""
    return number // _KEYS_OF_EPOCH


def file_of_epoch(path: Path, epoch: int) -> Path:
    """Return the file of the leader of an epoch; ``path`` is that of the settings."""
    return path.with_name(f"{path.name}.e{epoch}") if epoch else path


def files_of_epochs(path: Path) -> dict[int, Path]:
    """Return the files that exist, by epoch; ``path`` is that of the settings.

    A log that moved between a single broker and a cluster has keys in files of both kinds. Raises
    KeyFileError.
    """
    files: dict[int, Path] = {}
    try:
        for place in path.parent.iterdir():
            name, _, number = place.name.rpartition(".e")
            epoch = int(number) if name == path.name and number.isdecimal() else 0
            if place.name == file_of_epoch(path, epoch).name:
                files[epoch] = place
    except FileNotFoundError:
        pass  # the error of opening a file names the directory
    except OSError as error:
        raise KeyFileError(f"{path.parent}: cannot be read: {error.strerror}") from None
    return files


def file_of_process(path: Path, number: int) -> Path:
    """Return the key file of one of several processes; ``path`` is that of the settings."""
    return path.with_name(f"{path.name}-p{number}")


def file_of_log(path: Path, own: str, other: str) -> Path:
    """Return the key file of another log of a node; ``path`` is that of the log ``own``."""
    places = split_log_name(own), split_log_name(other)
    if places[0] is None or places[1] is None:
        return path
    whole = path.with_name(path.name.removesuffix(f"-p{places[0][1]}"))
    return file_of_process(whole, places[1][1])


def copy_keys(source: Path, target: Path, node: str) -> None:
    """Copy the files of a node for another one, which has a copy of its log.

    Raises KeyFileError; ``target`` must not exist.
    """
    files = files_of_epochs(source)
    with_keys = [(epoch, file) for epoch, file in files.items() if _has_keys(file)]
    for epoch, file in with_keys or [(0, source)]:
        _copy_file(file, file_of_epoch(target, epoch), node)


def _has_keys(file: Path) -> bool:
    try:
        return file.stat().st_size > _HEAD_BYTES
    except OSError as error:
        raise KeyFileError(f"{file}: cannot be read: {error.strerror}") from None


def _copy_file(source: Path, target: Path, node: str) -> None:
    try:
        data = source.read_bytes()
    except OSError as error:
        raise KeyFileError(f"{source}: cannot be read: {error.strerror}") from None
    if not data.startswith(_TITLE.encode()):
        raise KeyFileError(f"{source}: {_NO_FILE}")
    try:
        durable_files.write_new(target, _head(node) + data[_HEAD_BYTES:])
    except OSError as error:
        raise KeyFileError(f"{target}: cannot be written: {error.strerror}") from None


def _whose(data: bytes) -> str:
    """Return whose file it is that a node cannot use, and what to do."""
    if not data.startswith(_TITLE.encode()):
        return _NO_FILE
    node = data[len(_TITLE) : _HEAD_BYTES].decode(errors="replace").strip()
    return (
        f"is the file of node {node}: name another one; if this node is a copy of that one, "
        "'foldmq restore --new-node' makes a copy of the file with --personal-key-file and "
        "--new-personal-key-file"
    )


def _head(node: str) -> bytes:
    return f"{_TITLE}{node}".encode()[: _HEAD_BYTES - 1].ljust(_HEAD_BYTES - 1) + b"\n"


def _packed(number: int, key: bytes, erasure: int) -> bytes:
    return _SLOT.pack(key, erasure, _check(number, key, erasure))


def _check(number: int, key: bytes, erasure: int) -> bytes:
    return hashlib.blake2b(b"%d %d" % (number, erasure), key=key, digest_size=24).digest()
