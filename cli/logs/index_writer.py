"""Writes the index of a log from its records; a question builds it where it is missing."""

import hashlib
import os
import shutil
from collections.abc import Callable
from operator import attrgetter
from pathlib import Path
from typing import Final

from cli.common import text
from cli.common.progress_bar import progress
from eventstore.errors import CorruptLog, CutMeanwhile, EventStoreError
from eventstore.format.event_parsing import UnreadableEvent
from eventstore.home_paths import user_cache
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.indexed_reading import is_of, with_index
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_source import LogSource, open_log
from eventstore.reading.progress import Progress, few_collections
from eventstore.reading.segment import BadIndex
from projections.past.segment_builder import SegmentBuilder

SEGMENT_RECORDS = 256
"""Records of a new segment; up to as many at the end of the log are not indexed yet."""
_AT_ONCE = 64
_SEGMENT_BYTES = 8 * 1024 * 1024
_SEGMENT_SESSIONS = 20_000
_MIN_FREE = 128 * 1024 * 1024
"""Bytes left free on the file system for the log."""
_FEW_OF_OTHERS: Final = 20_000
"""Records that are read of the log of another user or machine, whose index may be written there."""


class IndexBusy(EventStoreError):  # noqa: N818 - named as its siblings in errors
    """Another process writes the index."""

    exit_code = 75


class NoRoomForIndex(EventStoreError):  # noqa: N818
    """The disk is too full for an index."""

    exit_code = 74


class IndexWriter:
    """The index of a log, locked for writing."""

    def __init__(self, source: LogSource, files: IndexFiles, most: int) -> None:
        """``most`` limits its size in bytes."""
        self.source = source
        self.written = 0
        """Number of written segments."""
        self._files = files
        self._most = most
        self._builder: SegmentBuilder

    async def open(self) -> None:
        """Lock and open the index; a damaged one, or one of another log, is removed.

        Raises IndexBusy and NoRoomForIndex.
        """
        self._on_disk(self._lock)
        try:
            self._files.open(self.source.stream)
            good = await is_of(self.source, self._files)
        except BadIndex:
            good = False
        self._begin(keep=good)

    def _lock(self) -> None:
        if not self._files.lock():
            raise IndexBusy(f"another process writes the index in {self._files.path}")

    def _begin(self, *, keep: bool) -> None:
        source, files = self.source, self._files
        if not keep:
            self._on_disk(files.remove_all)
        index = LogIndex(files.segments, source.begin)
        self._builder = SegmentBuilder(source.stream, source.begin, index, files.head)

    async def extend(self, last: int, shown: Progress) -> None:
        """Index the records up to ``last``.

        Raises NoRoomForIndex, CorruptLog and UnreadableEvent.
        """
        while True:
            try:
                with few_collections(), shown("indexing", last) as update:
                    while self._builder.taken < last:
                        await self._take_some(last)
                        update(self._builder.taken)
            except CutMeanwhile:
                await self._start_at_first_record()
            else:
                return

    async def _take_some(self, last: int) -> None:
        """Take a few records: a server cuts the connection to a slow reader of many."""
        first = self._builder.taken + 1
        async for record in self.source.records(first, min(last, first + _AT_ONCE - 1)):
            self._builder.take(record)
            if (
                self._builder.records >= SEGMENT_RECORDS
                or self._builder.bytes >= _SEGMENT_BYTES
                or self._builder.sessions >= _SEGMENT_SESSIONS
            ):
                self.close_segment()

    async def _start_at_first_record(self) -> None:
        """Begin with the first record of the log now: earlier ones were never indexed."""
        source = self.source
        self.source = await open_log(source.client, source.stream, source.where, live=source.live)
        self._begin(keep=False)

    def close_segment(self) -> None:
        """Write the records collected so far as a segment. Raises NoRoomForIndex."""
        if not self._builder.records:
            return
        self._on_disk(self._write)

    def _write(self) -> None:
        files = self._files
        if shutil.disk_usage(files.path).free < _MIN_FREE:
            raise NoRoomForIndex(
                f"less than {text.size(_MIN_FREE)} are free on the disk with {files.path}: the "
                "index is not written"
            )
        try:
            files.append(*self._builder.finish())
            files.shrink(self._most, self.source.begin)
        except BadIndex:
            self._begin(keep=False)
            return
        self._builder.adopt(LogIndex(files.segments, self.source.begin))
        self.written += 1

    def _on_disk(self, do: Callable[[], object]) -> None:
        try:
            do()
        except OSError as error:
            raise NoRoomForIndex(f"index in {self._files.path}: {error.strerror}") from None

    def described(self) -> str:
        """Return the range of the index as text."""
        head = self._files.head
        if head is None:
            return "the log has no records to index"
        first = self._files.segments[0].head.first
        return (
            f"the index covers records {first:,} to {head.last:,}: "
            f"{text.size(self._files.size)} in {self._files.path}"
        )

    def close(self) -> None:
        """Close and unlock the index."""
        self._files.close()
        self._files.unlock()


async def with_whole_index(source: LogSource, own: Path, most: int) -> LogSource:
    """Return a log, opened with the index in ``own``, with an index of all but its last records.

    The index is written there, in the data directory, or to the user's cache if that is no
    directory of this user. ``most`` limits its size in bytes. If there is no room, or another
    process is writing it, the records are read instead.
    """
    if _is_of_this_user(own.parent.parent):
        try:
            return await _extended(source, own, most)
        except IndexBusy:
            return source
        except NoRoomForIndex:
            pass
    cache = _cache(source)
    if cache is None or source.not_indexed <= _FEW_OF_OTHERS:
        return source
    cached = await with_index(source, cache)
    if cached.not_indexed <= _FEW_OF_OTHERS:
        return cached
    try:
        return await _extended(source, cache, most)
    except (IndexBusy, NoRoomForIndex):
        return min(source, cached, key=attrgetter("not_indexed"))


async def _extended(source: LogSource, path: Path, most: int) -> LogSource:
    """Index a log, one that is damaged up to the damage."""
    writer = IndexWriter(source, IndexFiles(path, source.key), most)
    try:
        await writer.open()
        await writer.extend(source.last, progress)
        writer.close_segment()
    except (CorruptLog, UnreadableEvent):
        pass  # a question that needs the record reports it
    finally:
        writer.close()
    return await with_index(source, path)


def _is_of_this_user(directory: Path) -> bool:
    try:
        return directory.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _cache(source: LogSource) -> Path | None:
    """Return the place of the index in the user's cache; None: the user has none."""
    where = hashlib.sha256(source.where.encode()).hexdigest()[:16]
    cache = user_cache()
    return cache and cache / "index" / where / source.stream
