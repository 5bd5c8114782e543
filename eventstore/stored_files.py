"""The files of a stream, as its path leads to them: whether the log is still where it belongs.

A server goes on writing to files that were deleted or replaced, and acknowledges what nothing will
read again. So the files are compared with what is known of them: the directory is still the same,
no block is missing or shorter than before, and the newest one grows with the log. Blocks may only
disappear, or become shorter, at the beginning and after the log was cut.

A look takes a few system calls. Damage that leaves names and sizes of older blocks as they were is
not seen.
"""

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

_AT_ONCE = 64
"""Number of older blocks whose sizes are compared in one look."""
_AFTER_CUT = 120
"""Looks after a cut in which blocks may still disappear at the beginning."""
_STILL = 4
"""Looks in a row in which the newest block must not have grown although the log has."""
_IN_FLIGHT = 2
"""Records that may be in a block before they are acknowledged."""
GONE = ("is gone", "was replaced")
"""What is said if none of the files is where it was."""
_COMPARED = 32
"""Bytes before the known end of the newest block that are compared."""


class _Place(NamedTuple):
    """The end of the newest block at a look."""

    block: int
    size: int
    stored: int
    """Last acknowledged record at that time."""
    tail: bytes


class StoredFiles:
    """The blocks of a stream in ``folder``."""

    def __init__(self, folder: Path) -> None:
        """Note the files as they are; the server has started, and nothing is being written."""
        self._folder = folder
        self._held: int | None = None
        """The open directory: its inode is not given to another one."""
        self._changed_ns = -1
        self._sizes: dict[int, int] = {}
        self._order: list[int] = []
        """Older blocks whose sizes are still to be compared in this round."""
        self._known: _Place | None = None
        """A place up to which all records are acknowledged."""
        self._latest: _Place | None = None
        self._first = 0
        self._looks_after_cut = 0
        self._still = 0
        self.whole = 0
        """Last acknowledged record at the last look that found nothing wrong."""
        with contextlib.suppress(OSError):  # the first look will fail as well
            self._look(0)
            self._known, self._latest = self._latest, None

    def damage(self, stored: int, first: int, *, idle: bool = False) -> str | None:
        """Return what is wrong with the files; None if nothing is.

        ``stored`` is the last acknowledged record, ``first`` the one at which the log may begin;
        ``idle``: no record waits for an acknowledgement, so the files contain no other bytes.
        """
        self._looks_after_cut = max(0, self._looks_after_cut - 1)
        if first != self._first:
            self._looks_after_cut = _AFTER_CUT if self._first else 0
            self._first = first
        try:
            problem = self._look(stored, idle=idle)
        except FileNotFoundError:
            return GONE[0]
        except OSError as error:
            return f"cannot be read: {error.strerror}"
        if problem is None:
            self.whole = stored
        return problem

    def forget_end(self) -> None:
        """Accept another end: a server that starts removes a record that is not complete."""
        self._latest = None

    def _look(self, stored: int, *, idle: bool = False) -> str | None:
        facts = os.stat(self._folder)  # noqa: PTH116 - Path.stat takes longer
        if self._held is None:
            self._held = os.open(self._folder, os.O_RDONLY | os.O_DIRECTORY)
        if not os.path.samestat(facts, os.fstat(self._held)):
            return GONE[1]
        if facts.st_mtime_ns != self._changed_ns:
            if (problem := self._compare_names()) is not None:
                return problem
            self._changed_ns = facts.st_mtime_ns
        return self._compare_sizes() or self._compare_end(stored, idle)

    def _compare_names(self) -> str | None:
        """Look for missing blocks, and note new ones."""
        present = {
            int(name[:-4])
            for name in os.listdir(self._folder)  # noqa: PTH208 - likewise
            if name.endswith(".blk") and name[:-4].isdecimal()
        }
        lowest = min(present, default=0)
        for block in sorted(self._sizes.keys() - present):
            if not self._looks_after_cut or not lowest or block > lowest:
                return f"lacks block {block}.blk"
            del self._sizes[block]
        for block in present - self._sizes.keys():
            self._sizes[block] = 0
        return None

    def _compare_sizes(self) -> str | None:
        """Compare the sizes of some blocks, other ones at each look."""
        if not self._order:
            self._order = list(self._sizes)
        blocks, self._order = self._order[:_AT_ONCE], self._order[_AT_ONCE:]
        for block in blocks:
            if block not in self._sizes:
                continue
            size = self._size_of(block)
            if size < self._sizes[block] and not self._is_cut(block) and block != self._newest:
                return f"has a block that was cut short: {block}.blk"
            self._sizes[block] = size
        return None

    def _compare_end(self, stored: int, idle: bool) -> str | None:
        """Check that the newest block contains what it did, and grows with the log."""
        block = self._newest
        if self._known is not None and self._is_cut(self._known.block):
            self._known = self._latest = None
        mark, latest = self._known, self._latest
        if mark is not None and mark.block in self._sizes:
            size = self._size_of(mark.block)
            if size < mark.size or self._tail(mark.block, mark.size) != mark.tail:
                return f"has a block that was cut short: {mark.block}.blk"
        size = self._size_of(block) if block else 0
        if size and not any(self._bytes(block, 0, _COMPARED)):  # written on behind a gap
            return f"has a block that was cut short: {block}.blk"
        if latest is None:
            self._latest = _Place(block, size, stored, self._tail(block, size))
        elif stored > latest.stored + _IN_FLIGHT:
            if (block, size) > (latest.block, latest.size):
                self._known = max(latest, mark or latest)
                self._latest = _Place(block, size, stored, self._tail(block, size))
                self._still = 0
            else:
                self._still += 1
                if self._still >= _STILL:
                    return f"does not grow: {block}.blk is not the file that is written"
        mark = self._known
        grown = mark is None or (block, size) > (mark.block, mark.size)
        if idle and grown and block and not self._is_cut(block):
            self._known = _Place(block, size, stored, self._tail(block, size))
        return None

    @property
    def _newest(self) -> int:
        return max(self._sizes, default=0)

    def _is_cut(self, block: int) -> bool:
        """Return whether a block may be rewritten now: it is the first one after a cut."""
        return self._looks_after_cut > 0 and block == min(self._sizes, default=0)

    def _size_of(self, block: int) -> int:
        return os.stat(self._folder / f"{block}.blk").st_size  # noqa: PTH116 - likewise

    def _tail(self, block: int, size: int) -> bytes:
        """Return the bytes before an offset in a block."""
        begin = max(0, size - _COMPARED)
        return self._bytes(block, begin, size - begin)

    def _bytes(self, block: int, begin: int, count: int) -> bytes:
        descriptor = os.open(self._folder / f"{block}.blk", os.O_RDONLY)
        try:
            return os.pread(descriptor, count, begin)
        finally:
            os.close(descriptor)
