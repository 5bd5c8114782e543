"""The keys of a log that the nodes of a cluster lead, or led, in a directory that they share.

Each leader makes keys in a file of its own, which its epoch names, with numbers of its epoch: a
leader that was replaced, and does not know yet, can only extend a file that nobody needs any more.
All of them overwrite keys in all files, but only those whose erasure is in the log: that can be
done twice. So there is no lock, which a suspended or unreachable node could keep.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, TypeAlias

import structlog

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


class SharedKeys:
    """The open files; as :class:`KeyFile`. Every method raises KeyFileError."""

    def __init__(self, path: Path, node: str, epoch: int, *, is_shared: bool = True) -> None:
        """Open the files of all epochs, and make that of ``epoch``; ``path`` is a setting.

        ``is_shared``: the nodes of a cluster use them; otherwise a single broker, to which a log
        of a cluster was restored.
        """
        self.path = path
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
        return [each for _, file in sorted(self._files.items()) for each in file.ranges]

    def key(self, number: int) -> bytes | None:
        """Return a key by its number; None: it was erased, or does not exist."""
        file = self._files.get(epoch_of(number))
        return None if file is None else file.key(number)

    def cipher(self, number: int) -> CipherContext | None:
        """Return the cipher of a key; None: it was erased, or does not exist."""
        file = self._files.get(epoch_of(number))
        return None if file is None else file.cipher(number)

    def erasure(self, number: int) -> int:
        """Return the number of the erasure that destroyed a key; 0: none did."""
        file = self._files.get(epoch_of(number))
        return 0 if file is None else file.erasure(number)

    @property
    def last_erasure(self) -> int:
        """The number of the last erasure that destroyed a key; 0: none did."""
        return max(file.last_erasure for file in self._files.values())

    def is_damaged(self, number: int) -> bool:
        """Return whether a key neither exists nor was erased."""
        file = self._files.get(epoch_of(number))
        return file is None or file.is_damaged(number)

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
        for epoch, own in by_epoch.items():
            self._files[epoch].erase(own, erasure)

    def close(self) -> None:
        """Close the files once no key is being destroyed, and forget the keys."""
        for file in self._files.values():
            file.close()


def open_keys(path: Path, node: str, epoch: int | None) -> Keys:
    """Open the keys of the log of a node; ``path`` is a setting. Raises KeyFileError.

    ``epoch`` is that of this leader; None: a single broker, which goes on with the newest file.
    """
    if epoch is not None:
        return SharedKeys(path, node, epoch)
    newest = max(files_of_epochs(path), default=0)
    return SharedKeys(path, node, newest, is_shared=False) if newest else KeyFile(path, node)


Keys: TypeAlias = KeyFile | SharedKeys
"""The keys of a log that a broker writes."""


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
        known = epoch()
        is_there = not known or await asyncio.to_thread(file_of_epoch(path, known).exists)
        missed = 0 if is_there else missed + 1
    _log.error(
        "the leader's keys are not in the directory of personal_key_file: this node cannot take "
        "over; name a directory that all nodes of the cluster share",
        personal_key_file=str(path),
    )
