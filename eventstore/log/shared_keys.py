"""The keys of a log: in one file, or in those of the nodes of a cluster that lead, or led, it.

Each leader makes keys in a file of its own, which its epoch names, with numbers of its epoch: a
leader that was replaced, and does not know yet, can only extend a file that nobody needs any more.
All of them overwrite keys in all files, but only those whose erasure is in the log: that can be
done twice. So there is no lock, which a suspended or unreachable node could keep.
"""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING, Final

import structlog

from eventstore.format.sealing import content_cipher
from eventstore.log.key_file import (
    KeyFile,
    KeyFileError,
    epoch_of,
    file_of_epoch,
    files_of_epochs,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    from cryptography.hazmat.primitives.ciphers import CipherContext

_log = structlog.get_logger("foldmq")

_LOOK_EVERY: Final = 5.0
_LOOKS: Final = 3
"""Looks in a row that find no file of the leader, until that is a problem: it has just begun."""
_CIPHERS: Final = 4096
"""Ciphers that are kept, 1.2 KB of memory each, before all are made again."""


class Keys:
    """The keys of a log that a broker writes. Every method raises KeyFileError.

    :meth:`erase` may be called in another thread, one call at a time.
    """

    def __init__(self, path: Path, node: str, epoch: int = 0, *, is_shared: bool = False) -> None:
        """Open the files of all epochs, and make that of ``epoch``; ``path`` is a setting.

        ``is_shared``: the nodes of a cluster use them; otherwise a single broker, which may have
        the log of a cluster.
        """
        self.path = path
        self._erasing = threading.Lock()
        self._ciphers: dict[int, CipherContext] = {}
        self._own = KeyFile(file_of_epoch(path, epoch), node, epoch, is_shared=is_shared)
        self._files = {epoch: self._own}
        try:
            # Only now: the directory has changed, so that a network file system lists it anew.
            for number, place in files_of_epochs(path).items():
                if number not in self._files:
                    self._files[number] = KeyFile(place, node, number, is_shared=is_shared)
        except BaseException:
            self.close()
            raise

    @property
    def end(self) -> int:
        """The first number of this epoch without a key."""
        return self._own.end

    @property
    def ranges(self) -> list[range]:
        """The numbers that keys have or had."""
        return [file.numbers for _, file in sorted(self._files.items())]

    def key(self, number: int) -> bytes | None:
        """Return a key by its number; None: it was erased, or does not exist."""
        return self._slot(number)[0]

    def cipher(self, number: int) -> CipherContext | None:
        """Return the cipher of a key; None: it was erased, or does not exist."""
        cipher = self._ciphers.get(number)
        if cipher is not None:
            return cipher
        key = self.key(number)
        if key is None:
            return None
        if len(self._ciphers) >= _CIPHERS:
            self._ciphers.clear()
        cipher = self._ciphers[number] = content_cipher(key)
        if self.key(number) is None:  # another thread has just erased it
            self._ciphers.pop(number, None)
            return None
        return cipher

    def erasure(self, number: int) -> int:
        """Return the number of the erasure that destroyed a key; 0: none did."""
        return self._slot(number)[1]

    @property
    def last_erasure(self) -> int:
        """The number of the last erasure that destroyed a key; 0: none did."""
        return max(file.last_erasure for file in self._files.values())

    def is_damaged(self, number: int) -> bool:
        """Return whether a key neither exists nor was erased."""
        return self._slot(number) == (None, 0)

    def _slot(self, number: int) -> tuple[bytes | None, int]:
        file = self._files.get(epoch_of(number))
        return (None, 0) if file is None else file.slot(number)

    def extend(self) -> None:
        """Add new keys, on disk when this returns."""
        self._own.extend()

    def erase(self, numbers: Iterable[int], erasure: int) -> None:
        """Destroy keys, on disk when this returns; it can be repeated.

        Nothing is destroyed if a file is missing: it may exist elsewhere, with its keys.
        """
        by_epoch: dict[int, list[int]] = {}
        for number in numbers:
            by_epoch.setdefault(epoch_of(number), []).append(number)
        for epoch in by_epoch:
            if epoch not in self._files:
                raise KeyFileError(
                    f"personal_key_file = {file_of_epoch(self.path, epoch)}: is missing, so that "
                    "its keys cannot be destroyed: restore it, and start again"
                )
        with self._erasing:
            for epoch, of_epoch in by_epoch.items():
                try:
                    self._files[epoch].erase(of_epoch, erasure)
                finally:
                    for number in of_epoch:
                        self._ciphers.pop(number, None)

    def close(self) -> None:
        """Close the files once no key is being destroyed, and forget the keys."""
        with self._erasing:
            self._ciphers.clear()
            for file in self._files.values():
                file.close()


def open_keys(path: Path, node: str, epoch: int | None) -> Keys:
    """Open the keys of the log of a node; ``path`` is a setting. Raises KeyFileError.

    ``epoch`` is that of this leader; None: a single broker, which goes on with the newest file.
    """
    if epoch is not None:
        return Keys(path, node, epoch, is_shared=True)
    return Keys(path, node, max(files_of_epochs(path), default=0))


def check_directory(path: Path) -> None:
    """Raise KeyFileError if the directory of the files does not exist."""
    if not path.parent.is_dir():
        raise KeyFileError(
            f"personal_key_file = {path}: {path.parent} does not exist: create it, on a file "
            "system that all nodes of the cluster share"
        )


async def watch_directory(path: Path, epoch: Callable[[], int]) -> None:
    """Log an error if a node does not find the file of the leader, whose ``epoch`` it knows."""
    missed = 0
    while missed < _LOOKS:
        await asyncio.sleep(_LOOK_EVERY)
        leader_epoch = epoch()
        is_there = not leader_epoch or await asyncio.to_thread(
            file_of_epoch(path, leader_epoch).exists
        )
        missed = 0 if is_there else missed + 1
    _log.error(
        "the leader's keys are not in the directory of personal_key_file: this node cannot take "
        "over; name a directory that all nodes of the cluster share",
        personal_key_file=str(path),
    )
