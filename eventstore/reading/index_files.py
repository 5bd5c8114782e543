"""The files of an index: consecutive segments, merged and removed to stay bounded.

A directory contains the index of one log. Each segment is a file; new segments are small, and
several of similar size are merged into one. When the total size becomes too large, or the log was
cut, the oldest segments are removed; the part that is still needed, the last state of each session,
moves to the next segment.
"""

import contextlib
import fcntl
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any, Final

from eventstore.encryption import StoreKey
from eventstore.reading.keys import (
    ALWAYS,
    RARE,
    STATES,
    merge_values,
    pack_sequences,
    unpack_sequences,
)
from eventstore.reading.segment import Segment, SegmentHead, write_segment

_MERGED_AT_ONCE: Final = 8
_SMALLEST: Final = 64 * 1024
"""Segments of up to this many bytes count as equal in size."""
LARGEST: Final = 64 * 1024 * 1024
"""Size in bytes from which a segment is no longer merged."""
_ENDING: Final = ".index"
_REMEMBERED: Final = f"{RARE}LimitsApplied"


class IndexFiles:
    """The open segments of a directory: the last consecutive ones."""

    def __init__(self, path: Path, key: StoreKey | None = None) -> None:
        """Use the index in a directory; with ``key``, an encrypted one."""
        self.path = path
        self._sealer = key.sealer(b"index") if key is not None else None
        self.segments: list[Segment] = []
        self._lock: int | None = None

    @property
    def size(self) -> int:
        """Size of all segments in bytes."""
        return sum(segment.size for segment in self.segments)

    @property
    def head(self) -> SegmentHead | None:
        """The head of the last segment; None: there is none."""
        return self.segments[-1].head if self.segments else None

    def open(self, stream: str) -> None:
        """Open the consecutive segments of a log up to the last one.

        Raises BadIndex if one is damaged, and OSError.
        """
        self.close()
        try:
            paths = sorted(file for file in self.path.iterdir() if file.name.endswith(_ENDING))
        except FileNotFoundError:
            return
        # A merged segment begins with the first record of its first source. The sources may still
        # exist if the merge was interrupted.
        held: list[Segment] = []
        try:
            held.extend(Segment(path, self._sealer) for path in paths)
            held.sort(key=lambda segment: (segment.head.first, -segment.head.last))
            for segment in held:
                if self.segments and segment.head.last <= self.segments[-1].head.last:
                    segment.close()
                    continue
                if self.segments and not _follows(self.segments[-1].head, segment.head):
                    self.close()
                segment.require(stream)
                self.segments.append(segment)
        except BaseException:
            for segment in held:
                segment.close()
            self.segments = []
            raise

    def close(self) -> None:
        """Close all segments."""
        for segment in self.segments:
            segment.close()
        self.segments = []

    # ------------------------------------------------------------------------- writing

    def lock(self) -> bool:
        """Create the directory and lock it for writing; return False if another process holds it.

        Raises OSError.
        """
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        descriptor = os.open(self.path / "lock", flags, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
            return False
        self._lock = descriptor
        return True

    def unlock(self) -> None:
        """Release the lock for other writers."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def remove_all(self) -> None:
        """Remove all segments, damaged ones as well. Raises OSError."""
        self.close()
        for file in self.path.iterdir():
            if _ENDING in file.name:
                file.unlink(missing_ok=True)

    def append(self, head: SegmentHead, items: Iterable[tuple[str, Any]]) -> None:
        """Add a segment after the last one, and merge if necessary. Raises OSError, BadIndex."""
        self._write(head, items)
        while len(sources := self._mergeable()) > 1:
            self._merge(sources)

    def shrink(self, most: int, begin: int) -> None:
        """Remove segments that were cut off, and the oldest while the size exceeds ``most`` bytes.

        The log begins with record ``begin``. Raises OSError, BadIndex.
        """
        while len(self.segments) > 1:
            oldest, heir = self.segments[:2]
            if self.size <= most and oldest.head.last >= begin:
                return
            items = _merged([_kept(oldest), heir.items()])
            self._replace([oldest, heir], replace(heir.head, heir=True), items)

    def _mergeable(self) -> list[Segment]:
        newest = self.segments[-_MERGED_AT_ONCE:]
        if len(newest) < _MERGED_AT_ONCE or sum(segment.size for segment in newest) > LARGEST:
            return []
        return newest if len({_tier(segment.size) for segment in newest}) == 1 else []

    def _merge(self, sources: Sequence[Segment]) -> None:
        first, newest = sources[0].head, sources[-1].head
        head = SegmentHead(
            newest.stream,
            first.first,
            newest.last,
            first.previous,
            newest.link,
            newest.whole,
            first.began_ms,
            first.heir,
            all(segment.head.effects for segment in sources),
        )
        self._replace(sources, head, _merged([segment.items() for segment in sources]))

    def _write(self, head: SegmentHead, items: Iterable[tuple[str, Any]]) -> None:
        name = f"{head.first:020}-{head.last:020}{_ENDING}"
        write_segment(self.path / name, head, items, self._sealer)
        self.segments.append(Segment(self.path / name, self._sealer))

    def _replace(
        self, sources: Sequence[Segment], head: SegmentHead, items: Iterable[tuple[str, Any]]
    ) -> None:
        at = self.segments.index(sources[0])
        behind = self.segments[at + len(sources) :]
        del self.segments[at:]
        try:
            self._write(head, items)
        except BaseException:
            self.segments += [*sources, *behind]
            raise
        new = self.segments[-1]
        self.segments += behind
        for segment in sources:
            segment.close()
            if segment.path != new.path:
                with contextlib.suppress(OSError):
                    segment.path.unlink()


def _follows(before: SegmentHead, after: SegmentHead) -> bool:
    return (before.stream, before.last + 1, before.link) == (
        after.stream,
        after.first,
        after.previous,
    )


def _tier(size: int) -> int:
    tier = 0
    while size > _SMALLEST:
        size //= _MERGED_AT_ONCE
        tier += 1
    return tier


def _merged(sources: Sequence[Iterable[tuple[str, Any]]]) -> Iterator[tuple[str, Any]]:
    """Yield the keys of successive segments in order, each once with one value."""
    pairs = merge(*sources, key=itemgetter(0))  # equal keys in the order of the sources
    for key, group in groupby(pairs, key=itemgetter(0)):
        yield key, merge_values(key, [value for _, value in group])


def _kept(segment: Segment) -> Iterator[tuple[str, Any]]:
    """Yield the keys that are still needed when the records of a segment are no longer indexed."""
    remembered = segment.get(_REMEMBERED)
    if remembered is not None:
        yield _REMEMBERED, pack_sequences(unpack_sequences(remembered)[-1:])
    for key, states in segment.starting(STATES):
        bound, parts, denied, _, size = states[-1]
        # At later points, a session without a state did not exist.
        yield key, [[bound, parts, denied, ALWAYS, size]]
