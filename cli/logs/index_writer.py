"""Writes the index of a log from its records: once, or beside the broker as the log grows."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Self

import structlog

from cli.common import text
from cli.common.progress_bar import progress
from cli.logs.logs import open_logs
from cli.logs.source import index_directory
from cli.logs.source_flags import SourceFlags
from cli.settings.broker_child import belong_to_the_broker, watch_stdin
from cli.settings.child_environment import environment_for
from cli.settings.setting_sources import PREFIX, ConfigError
from cli.settings.settings import load_settings
from eventstore.errors import CutMeanwhile, EventStoreError
from eventstore.reading.gc_pause import few_collections
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.indexed_reading import is_of
from eventstore.reading.log_index import LogIndex
from eventstore.reading.log_source import LogSource, open_log
from eventstore.reading.progress import Progress, silent
from eventstore.reading.segment import BadIndex
from eventstore.server.process import end_process
from projections.past.segment_builder import SegmentBuilder

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cli.settings.settings import Settings
    from eventstore.datadir import DataDir

SEGMENT_RECORDS = 256
"""Records of a new segment; up to as many at the end of the log are not indexed yet."""
_AT_ONCE = 64
_SEGMENT_BYTES = 8 * 1024 * 1024
_SEGMENT_SESSIONS = 20_000
_MIN_FREE = 128 * 1024 * 1024
"""Bytes left free on the file system for the log."""
_POLL_SECONDS = 1.0
_IDLE_SECONDS = 60.0
"""Seconds without a new segment after which the process beside the broker ends."""
_NICE = 19


class IndexBusy(EventStoreError):  # noqa: N818 - named as its siblings in errors
    """Another process writes the index."""

    exit_code = 75


class NoRoomForIndex(EventStoreError):  # noqa: N818
    """The disk is too full for an index."""

    exit_code = 74


def run_index(flags: SourceFlags, *, child: bool) -> None:
    """Bring the index up to date; with ``child`` continue while the log grows.

    Raises IndexBusy, NoRoomForIndex, ConfigError, and the errors of reading the log.
    """
    settings = load_settings(flags.settings, os.environ, flags.config)
    if not settings.index_bytes:
        raise ConfigError("index_bytes = 0 disables the index; set a size, such as 1GiB")
    if child:
        belong_to_the_broker(_NICE)
    asyncio.run(_run(flags, settings.index_bytes, child=child))


async def _run(flags: SourceFlags, most: int, *, child: bool) -> None:
    end = asyncio.Event()
    if child:
        await watch_stdin(end)
    busy: IndexBusy | None = None
    async with open_logs(flags) as logs:
        for source in logs.values():
            writer = IndexWriter(source, index_directory(flags, source.stream), most)
            try:
                await writer.open()
                await writer.extend(source.last, silent if child else progress)
                if child:
                    await _follow(writer, end)
                else:
                    writer.close_segment()
                    sys.stderr.write(f"foldmq: {writer.described()}\n")
            except IndexBusy as error:
                busy = error  # the others may be free
            finally:
                writer.close()
    if busy is not None:
        raise busy


async def _follow(writer: IndexWriter, end: asyncio.Event) -> None:
    """Index new records of the broker until it pauses for long, or ends."""
    loop = asyncio.get_running_loop()
    written = loop.time()
    while not end.is_set() and loop.time() - written < _IDLE_SECONDS:
        _, last = await writer.source.bounds()
        before = writer.written
        await writer.extend(last, silent)
        if writer.written > before:
            written = loop.time()
        try:
            async with asyncio.timeout(_POLL_SECONDS):
                await end.wait()
        except TimeoutError:
            continue


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
        index = LogIndex(files.segments, source.begin) if files.segments else None
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
            if _is_full(self._builder):
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


def _is_full(builder: SegmentBuilder) -> bool:
    return (
        builder.records >= SEGMENT_RECORDS
        or builder.bytes >= _SEGMENT_BYTES
        or builder.sessions >= _SEGMENT_SESSIONS
    )


log = structlog.get_logger("foldmq")

_LOOK_SECONDS = 10.0
_MANY_RECORDS, _RARELY_SECONDS = 16_384, 600.0
"""Number of new records from which the process is started, and seconds after the start of the
broker or the end of the process from which it is started for a single segment."""
_BACKOFF_SECONDS = (10.0, 600.0)
_STOP_SECONDS = 3.0


class IndexProcess:
    """The process that writes the index beside ``foldmq serve``; an async context that ends it.

    It runs only while there is something to index, with the lowest priority, and never outlives
    the broker.
    """

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._keeping: asyncio.Task[None] | None = None

    def start(self, settings: Settings, datadir: DataDir, last: Callable[[], int]) -> None:
        """Begin; ``last`` returns the sequence of the last record of the log."""
        if settings.index_bytes:
            environment = environment_for(settings, datadir)
            environment[f"{PREFIX}INDEX_BYTES"] = str(settings.index_bytes)
            self._keeping = asyncio.create_task(self._keep(datadir, environment, last))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeping
        await end_process(self._process, _STOP_SECONDS)

    async def _keep(
        self, datadir: DataDir, environment: Mapping[str, str], last: Callable[[], int]
    ) -> None:
        """Start the process whenever there are many records, or rarely, enough for a segment."""
        now = asyncio.get_running_loop().time
        indexed, delay, rested_from = 0, _BACKOFF_SECONDS[0], now()
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            rested = now() - rested_from >= _RARELY_SECONDS
            if last() - indexed < (SEGMENT_RECORDS if rested else _MANY_RECORDS):
                continue
            try:
                self._process = await _launch(datadir, environment)
                code = await self._process.wait()
                why = f"exit {code}" if code >= 0 else f"signal {-code}"
            except OSError as error:
                code, why = 1, error.strerror or str(error)
            if not code:
                indexed, delay, rested_from = last(), _BACKOFF_SECONDS[0], now()
                continue
            log.warning("the index of the log is not written", reason=why, again_after_s=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _BACKOFF_SECONDS[1])


async def _launch(datadir: DataDir, environment: Mapping[str, str]) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable,
        # Files in the working directory must not be imported as modules.
        *("-P", "-m", "foldmq", "log", "index", "--data-dir", str(datadir.path), "--child"),
        env=environment,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.DEVNULL,
        # Ctrl-C reaches the whole process group, but the broker ends this process.
        start_new_session=True,
    )
