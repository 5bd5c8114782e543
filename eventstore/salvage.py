"""Saves what is intact of a damaged log into a new data directory.

The damaged store is never worked on: a NATS server that starts may cut off what it cannot read.
It is copied, a server recovers the copy, the records are read in order up to the first one that
is not right, and another server stores them, byte by byte, under the same sequences. The new
directory gets its log and its node id only when all of that is on disk.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import nats.errors
import orjson

from eventstore.connection import ConnectionOptions, connect, disconnect, ensure_stream
from eventstore.datadir import DataDir, take_lock
from eventstore.embedded import EmbeddedServer, Sync
from eventstore.errors import CorruptLog, DataDirBusy, DataDirError, DiskFull, NatsUnavailable
from eventstore.events import UnknownEvent, UnreadableEvent, entries
from eventstore.log import read_bounds, read_stored, read_tail
from eventstore.records import ChainChecker, decode_record
from eventstore.watermark import Watermark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator
    from pathlib import Path

    from nats.aio.client import Client

_WORK: Final = "salvage.tmp"
_SYNC_SECONDS: Final = 30.0
"""The server that writes need not sync each record: all files are synced in the end."""
_WRITE_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class Salvaged:
    """What was saved."""

    node: str
    records: int
    entries: int
    until_ms: int
    """Time of the last record, Unix time in milliseconds."""
    known: int
    """How many records the log is known to have had."""
    problem: str | None
    """What was wrong behind them; None when every record was intact."""


async def salvage(
    source: Path | str, target: Path | str, progress: Callable[[str, int, int], None]
) -> Salvaged:
    """Save the intact beginning of the log in ``source`` into the new directory ``target``.

    ``progress(what, done, total)`` counts the bytes copied, then the records written. Raises
    DataDirError when there is no log or ``target`` is not empty, DataDirBusy when a broker uses
    ``source``, DiskFull, CorruptLog when not even the first record is intact, and UnknownEvent
    or UnknownLogFormat for what a later foldmq wrote. ``target`` is then as it was.
    """
    damaged, new = DataDir(source), DataDir(target)
    node = _check_source(damaged)
    _check_target(damaged, new)
    existed = new.path.exists()
    with _undisturbed(damaged), new:
        try:
            return await _build(damaged, new, node, progress)
        except BaseException:
            _undo(new.path, existed=existed)
            raise


async def _build(
    damaged: DataDir, new: DataDir, node: str, progress: Callable[[str, int, int], None]
) -> Salvaged:
    need = 2 * sum(file.stat().st_size for file in _files(damaged.jetstream))
    if new.free_bytes() < need:
        raise DiskFull(f"{new.path} (about {need:,} bytes are needed)")
    copy, fresh = (DataDir(new.path / _WORK / name) for name in ("copy", "fresh"))
    for made in (copy, fresh):
        made.path.mkdir(mode=0o700, parents=True)
        made.write_private(made.path / "node", node + "\n")
    await asyncio.to_thread(_copy, damaged, copy, progress)
    mark = Watermark(damaged.path / "log.mark", _names(node)[0])
    saved = await _save(copy, fresh, mark, progress)
    await asyncio.to_thread(_sync, fresh.jetstream)
    fresh.jetstream.rename(new.jetstream)
    new.write_private(new.path / "node", node + "\n")
    shutil.rmtree(new.path / _WORK)
    return saved


def _names(node: str) -> tuple[str, str]:
    return f"FOLDMQ_LOG_{node}", f"foldmq.log.{node}"


def _check_source(damaged: DataDir) -> str:
    if not damaged.jetstream.is_dir() or not any(_files(damaged.jetstream)):
        raise DataDirError(damaged.path, "holds no log")
    return damaged.node()


def _check_target(damaged: DataDir, new: DataDir) -> None:
    if new.path.resolve().is_relative_to(damaged.path.resolve()):
        raise DataDirError(new.path, "lies in the damaged one: name a new directory elsewhere")
    try:
        empty = not any(new.path.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataDirError(new.path, f"cannot be used: {error.strerror}") from None
    if not empty:
        raise DataDirError(new.path, "is not empty: name a new directory")


@contextlib.contextmanager
def _undisturbed(damaged: DataDir) -> Iterator[None]:
    """Keep brokers and NATS servers away from the damaged store."""
    with damaged:
        held = take_lock(damaged.nats_lock)
        if held is None:
            raise DataDirBusy(damaged.path, None, "a NATS server that an earlier broker left")
        try:
            yield
        finally:
            os.close(held)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def _copy(damaged: DataDir, copy: DataDir, progress: Callable[[str, int, int], None]) -> None:
    files = list(_files(damaged.jetstream))
    total = sum(file.stat().st_size for file in files)
    done = 0
    for file in files:
        place = copy.jetstream / file.relative_to(damaged.jetstream)
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(file, place)
        except OSError as error:
            raise DataDirError(damaged.path, f"cannot copy {file.name}: {error.strerror}") from None
        done += file.stat().st_size
        progress("copying", done, total)


async def _save(
    copy: DataDir, fresh: DataDir, mark: Watermark, progress: Callable[[str, int, int], None]
) -> Salvaged:
    """Read the records of the copy and write the intact ones into a fresh log."""
    node = copy.node()
    stream, subject = _names(node)
    good = _Good(mark.read())
    async with _opened(copy, "always") as old, _opened(fresh, _SYNC_SECONDS) as new:
        _, last = await read_bounds(old, stream)
        known = max(last, good.noted[0])
        problem = None
        try:
            async for sequence, data in read_stored(old, stream, 1, last):
                good.take(sequence, data)
                await _append(new, subject, sequence, data)
                progress("saving", sequence, last)
            good.check_end(known)
        except (CorruptLog, UnreadableEvent) as error:
            if isinstance(error, UnknownEvent) or not good.chain.sequence:
                raise
            problem = str(error)
            if isinstance(error, CorruptLog):
                problem = f"record {error.sequence} {error.what}"
        tail = await read_tail(new, stream, subject)
        if (tail.sequence, tail.link) != (good.chain.sequence, good.chain.link):
            raise NatsUnavailable(f"the new log in {fresh.path} does not hold what was written")
    return Salvaged(node, good.chain.sequence, good.entries, good.until_ms, known, problem)


class _Good:
    """Takes records as long as they are right."""

    def __init__(self, noted: tuple[int, bytes] | None) -> None:
        self.chain = ChainChecker()
        self.entries = 0
        self.until_ms = 0
        self.noted = noted or (0, b"")

    def take(self, sequence: int, data: bytes) -> None:
        """Count a record; raise CorruptLog or UnreadableEvent when it is not right."""
        record = decode_record(sequence, data)
        if self.noted[0] == sequence and self.noted[1] != record.link:
            raise CorruptLog(sequence, "is not the one that was acknowledged")
        count = sum(entries(event) for _, event in record.events())
        self.chain.check(record)
        self.entries += count
        self.until_ms = record.time_ms

    def check_end(self, known: int) -> None:
        """Raise CorruptLog when there should be more records."""
        if self.chain.sequence < known:
            raise CorruptLog(self.chain.sequence + 1, "is missing or cannot be read")


@asynccontextmanager
async def _opened(datadir: DataDir, sync: Sync) -> AsyncIterator[Client]:
    """Run a server on a directory and give a connection to it; the log's stream is there."""
    server = EmbeddedServer(datadir, sync=sync)
    await server.start()
    try:
        access = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
        client = await connect(access)
        try:
            stream, subject = _names(datadir.node())
            # a stream that was not recovered is made anew: NATS fills it with what it finds
            await ensure_stream(client, stream, [subject])
            yield client
        finally:
            await disconnect(client)
    finally:
        await server.stop()


async def _append(client: Client, subject: str, sequence: int, data: bytes) -> None:
    headers = {"Nats-Expected-Last-Sequence": str(sequence - 1)}
    try:
        reply = await client.request(subject, data, timeout=_WRITE_TIMEOUT, headers=headers)
    except (TimeoutError, nats.errors.Error) as error:
        what = f"{error or 'time-out'}"
        raise NatsUnavailable(f"record {sequence} cannot be written: {what}") from None
    answer = orjson.loads(reply.data)
    if "error" in answer or answer["seq"] != sequence:
        raise NatsUnavailable(f"record {sequence} cannot be written: {answer}")


def _sync(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _undo(path: Path, *, existed: bool) -> None:
    """Remove what was made in a directory that was empty or not there."""
    if not path.is_dir():
        return
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    if not existed:
        path.rmdir()
