"""The index of a log is written once by command, or beside the broker as the log grows."""

import asyncio
import os
import sys
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import NamedTuple

import structlog

from cli.common.progress_bar import progress
from cli.logs.index_writer import SEGMENT_RECORDS, IndexBusy, IndexWriter
from cli.logs.logs import open_logs
from cli.logs.source import index_path
from cli.logs.source_flags import SourceFlags
from cli.settings.broker_child import (
    BrokerChild,
    belong_to_the_broker,
    environment_for,
    watch_stdin,
)
from cli.settings.setting_sources import PREFIX, ConfigError
from cli.settings.settings import Settings, load_settings
from eventstore.datadir import DataDir
from eventstore.errors import EventStoreError
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.progress import silent

_POLL_SECONDS = 1.0
_IDLE_SECONDS = 60.0
"""Seconds without a new segment after which the process beside the broker ends."""
_NICE = 19


def run_index(flags: SourceFlags, *, child: bool) -> None:
    """Bring the index up to date; with ``child`` continue while the log grows.

    Raises IndexBusy, NoRoomForIndex, ConfigError, and the errors of reading the log.
    """
    settings = load_settings(flags.settings, os.environ, flags.config)
    if not settings.index_bytes:
        raise ConfigError("index_bytes = 0 disables the index; set a size, such as 1GiB")
    if child:
        belong_to_the_broker(_NICE)
    asyncio.run(_run(flags, settings, child=child))


async def _run(flags: SourceFlags, settings: Settings, *, child: bool) -> None:
    most = settings.index_bytes
    end = asyncio.Event()
    if child:
        await watch_stdin(end)
    busy: IndexBusy | None = None
    async with open_logs(flags) as logs:
        for source in logs.values():
            place = index_path(settings.data_dir, source.stream)
            writer = IndexWriter(source, IndexFiles(place, source.key), most)
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


log = structlog.get_logger("foldmq")

_LOOK_SECONDS = 10.0
_MANY_RECORDS, _MANY_BYTES, _RARELY_SECONDS = 16_384, 16 * 1024 * 1024, 600.0
"""Number of new records, or bytes in them, from which the process is started (a record may have
thousands of messages), and seconds after the start of the broker or the end of the process from
which it is started for a single segment."""
_BACKOFF_SECONDS = (10.0, 600.0)


class LogGrowth(NamedTuple):
    """How much there is to index of the log of the broker."""

    last: Callable[[], int]
    """Returns the sequence of the last record."""
    written: Callable[[], int]
    """Returns how many bytes of records the broker has written."""
    size: Callable[[], Awaitable[int]]
    """Returns the size of the log in bytes; raises EventStoreError."""


class IndexProcess(BrokerChild):
    """The process that writes the index beside ``foldmq serve``.

    It runs only while there is something to index, with the lowest priority.
    """

    def start(self, settings: Settings, datadir: DataDir, growth: LogGrowth) -> None:
        """Begin to index a log."""
        if settings.index_bytes:
            environment = environment_for(settings, datadir)
            environment[f"{PREFIX}INDEX_BYTES"] = str(settings.index_bytes)
            self._keeping = asyncio.create_task(self._keep(datadir, environment, growth))

    async def _keep(
        self, datadir: DataDir, environment: Mapping[str, str], growth: LogGrowth
    ) -> None:
        """Start the process whenever there is much to index, or rarely, enough for a segment."""
        now = asyncio.get_running_loop().time
        indexed, delay, rested_from = 0, _BACKOFF_SECONDS[0], now()
        indexed_bytes = growth.written()
        with suppress(EventStoreError, OSError):  # then only what is written from now on counts
            indexed_bytes -= await growth.size()
        arguments = ("log", "index", "--data-dir", str(datadir.path), "--child")
        while True:
            await asyncio.sleep(_LOOK_SECONDS)
            rested = now() - rested_from >= _RARELY_SECONDS
            records, size = growth.last() - indexed, growth.written() - indexed_bytes
            if size < _MANY_BYTES and records < (SEGMENT_RECORDS if rested else _MANY_RECORDS):
                continue
            why = await self._run(arguments, environment)
            if why == "exit 0":
                indexed, indexed_bytes = growth.last(), growth.written()
                delay, rested_from = _BACKOFF_SECONDS[0], now()
                continue
            log.warning("the index of the log is not written", reason=why, again_after_s=delay)
            await asyncio.sleep(delay)
            delay = min(2 * delay, _BACKOFF_SECONDS[1])
