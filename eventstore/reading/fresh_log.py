"""Writes a log into a new data directory: the records of another one, byte by byte.

The directory gets its log and its node id only when all records are on disk: until then they are in
a directory of its own inside it, which is removed after a failure. If the command was killed, the
next one into the same directory begins again; without a node id, no broker starts there.
"""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Final

import nats.errors
from nats.aio.client import Client

from eventstore.datadir import DataDir
from eventstore.encryption import StoreKey
from eventstore.errors import DataDirError, DiskFull, NatsUnavailable
from eventstore.log.record_reader import read_tail
from eventstore.nats.connection import ConnectionOptions, connect, disconnect
from eventstore.nats.jetstream import publish_expecting, purge
from eventstore.nats.log_stream import ensure_stream
from eventstore.server.embedded_server import EmbeddedServer
from eventstore.server.process import Sync, take_store

_SYNC_SECONDS: Final = 30.0
"""Sync interval of the server that writes. It need not sync each record: all files are synced at
the end."""
_WRITE_TIMEOUT: Final = 30.0
_ROOM: Final = 64
_LEFT: Final = re.compile(
    r"(foldmq\.lock|unfinished\.tmp|jetstream|p[0-9]+|(node|log\.mark|processes|restored)(\.new)?)"
)
"""The names of what an interrupted command leaves in a directory."""


def log_names(node: str) -> tuple[str, str]:
    """Return the stream and the subject of a node's log."""
    return f"FOLDMQ_LOG_{node}", f"foldmq.log.{node}"


@asynccontextmanager
async def new_directory(path: Path | str) -> AsyncIterator[DataDir]:
    """Lock a new or empty data directory; a failure leaves it as it was.

    One that an interrupted command left is emptied first. Raises DataDirError when it is not empty
    or cannot be used, DataDirBusy when another process uses it.
    """
    new = DataDir(path)
    try:
        if any(new.path.iterdir()) and not _is_left(new):
            raise DataDirError(new.path, "is not empty: name a new directory")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise DataDirError(new.path, f"cannot be used: {error.strerror}") from None
    existed = new.path.exists()
    with new:
        if _is_left(new):
            await _clear(new)
        try:
            new.unfinished.mkdir(mode=0o700)
            yield new
        except BaseException:
            _undo(new.path, existed=existed)
            raise


def work_directory(new: DataDir, name: str, node: str) -> DataDir:
    """Return a data directory for a server, inside a new one, with this node id."""
    made = DataDir(new.unfinished / name)
    made.path.mkdir(mode=0o700, parents=True)
    made.write_private(made.path / "node", node + "\n")
    return made


def require_room(new: DataDir, size: int) -> None:
    """Raise DiskFull unless there is room for a number of bytes."""
    if new.free_bytes() < size:
        raise DiskFull(f"{new.path} (about {size:,} bytes are needed)")


class FreshLog:
    """A log that is being written; its records keep their sequences."""

    def __init__(self, client: Client, node: str, begin: int) -> None:
        self._client = client
        self._stream, self._subject = log_names(node)
        self.sequence = begin - 1
        """The last written record."""
        self._pending: list[asyncio.Task[None]] = []

    async def append(self, data: bytes) -> None:
        """Write the next record. Raises NatsUnavailable."""
        self.sequence += 1
        if len(self._pending) >= _ROOM:
            await self.finish()
        self._pending.append(asyncio.ensure_future(self._publish(self.sequence, data)))

    async def finish(self) -> None:
        """Wait until all records are written. Raises NatsUnavailable."""
        pending, self._pending = self._pending, []
        await asyncio.gather(*pending)

    async def check_end(self, link: bytes) -> None:
        """Raise NatsUnavailable unless the log ends with the last record, with this link."""
        await self.finish()
        tail = await read_tail(self._client, self._stream, self._subject)
        if (tail.sequence, tail.link) != (self.sequence, link):
            raise NatsUnavailable("the new log does not contain what was written")

    async def _publish(self, sequence: int, data: bytes) -> None:
        try:
            answer = await publish_expecting(
                self._client, self._subject, data, sequence - 1, _WRITE_TIMEOUT
            )
        except (TimeoutError, nats.errors.Error) as error:
            what = f"{error or 'time-out'}"
            raise NatsUnavailable(f"record {sequence} cannot be written: {what}") from None
        if "error" in answer or answer["seq"] != sequence:
            raise NatsUnavailable(f"record {sequence} cannot be written: {answer}")


@asynccontextmanager
async def opened_store(
    datadir: DataDir, sync: Sync, key: StoreKey | None = None
) -> AsyncIterator[Client]:
    """Run a server on a directory and yield a connection to it; with ``key`` it is encrypted."""
    server = EmbeddedServer(datadir, sync=sync, key=key)
    await server.start()
    try:
        access = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
        client = await connect(access)
        try:
            yield client
        finally:
            await disconnect(client)
    finally:
        await server.stop()


@asynccontextmanager
async def fresh_store(
    new: DataDir, node: str, key: StoreKey | None = None
) -> AsyncIterator[Client]:
    """Run a server on an empty store; when the block ends, the directory gets the store."""
    fresh = work_directory(new, "fresh", node)
    async with opened_store(fresh, _SYNC_SECONDS, key) as client:
        yield client
    await asyncio.to_thread(_sync, fresh.jetstream)
    fresh.jetstream.rename(new.jetstream)


async def begin_log(client: Client, node: str, begin: int) -> FreshLog:
    """Create the stream of a log that begins with a record, and return the log."""
    stream, subject = log_names(node)
    await ensure_stream(client, stream, [subject])
    if begin > 1:  # purging an empty stream sets the sequence at which it begins
        await purge(client, stream, begin)
    return FreshLog(client, node, begin)


def finish_directory(new: DataDir, node: str) -> None:
    """Remove what else was made in a data directory that has its store, and give it the node id."""
    for folder in new.unfinished.iterdir():
        shutil.rmtree(folder)
    new.write_private(new.path / "node", node + "\n")
    new.unfinished.rmdir()


def _sync(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _is_left(new: DataDir) -> bool:
    """Return whether a directory has only what a command left that was killed before its end."""
    names = {entry.name for entry in new.path.iterdir()}
    if new.unfinished.name not in names:
        return names == {"foldmq.lock"}
    return "node" not in names and all(map(_LEFT.fullmatch, names))


async def _clear(new: DataDir) -> None:
    """Remove what the command left, and end its servers; the lock stays.

    The mark of an unfinished directory goes last: this may be interrupted, too.
    """
    for folder in new.unfinished.glob("*"):
        os.close(await take_store(DataDir(folder), lambda _: None))
    for entry in sorted(new.path.iterdir(), key=new.unfinished.__eq__):
        if entry.is_dir():
            shutil.rmtree(entry)
        elif entry.name != "foldmq.lock":
            entry.unlink()


def _undo(path: Path, *, existed: bool) -> None:
    """Remove the files created in a directory that was empty or did not exist."""
    if not path.is_dir():
        return
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    if not existed:
        path.rmdir()
