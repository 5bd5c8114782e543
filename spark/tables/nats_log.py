"""Logs in NATS: found by their streams, and read ahead of the decoder."""

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Generator
from contextlib import aclosing
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Final, TypeAlias

from nats.aio.client import Client

from eventstore.errors import CorruptLog, CutMeanwhile, LogUnavailable, LostLog
from eventstore.log.record_reader import read_stored
from eventstore.nats.connection import disconnect
from eventstore.nats.jetstream import read_bounds, request_stream
from protocol.errors import FoldmqError
from spark.runtime.sync_calls import run_sync
from spark.tables.nats_access import NatsAccess

Item: TypeAlias = tuple[int, bytes]

_CHUNK_ITEMS: Final = 256
_CHUNK_BYTES: Final = 1 << 20
_CHUNKS: Final = 8
"""Maximum chunks read ahead."""
_CANCEL_EVERY: Final = 0.2
_TIMEOUT: Final = 20.0


def read_ahead(source: Callable[[], AsyncIterator[Item]]) -> Generator[Item]:
    """Yield the items of the source; raise its error. Closing the iterator ends the source."""
    reader = _Reader(source)
    reader.start()
    try:
        while (chunk := reader.take()) is not None:
            yield from chunk
    finally:
        reader.end()


class _Reader(threading.Thread):
    """Fills a bounded queue of chunks."""

    def __init__(self, source: Callable[[], AsyncIterator[Item]]) -> None:
        super().__init__(name="foldmq-read-ahead", daemon=True)
        self._source = source
        self._chunks: SimpleQueue[list[Item] | BaseException | None] = SimpleQueue()
        self._started = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._task: asyncio.Task[None] | None
        self._room: asyncio.Semaphore

    def run(self) -> None:
        """Read until the source ends or fails, or reading ahead is stopped."""
        try:
            asyncio.run(self._read())
        except asyncio.CancelledError:
            pass
        except BaseException as error:  # noqa: BLE001 - raised in the thread that takes
            self._chunks.put(error)
        finally:
            self._task = None
            self._started.set()
            self._chunks.put(None)

    async def _read(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._task = asyncio.current_task()
        self._room = asyncio.Semaphore(_CHUNKS)
        self._started.set()
        chunk: list[Item] = []
        size = 0
        source = self._source()
        try:
            async for item in source:
                chunk.append(item)
                size += len(item[1])
                if len(chunk) == _CHUNK_ITEMS or size >= _CHUNK_BYTES:
                    await self._room.acquire()
                    self._chunks.put(chunk)
                    chunk, size = [], 0
            self._chunks.put(chunk)
        finally:
            await source.aclose()  # type: ignore[attr-defined]  # an async generator

    def take(self) -> list[Item] | None:
        """Return the next items; None at the end."""
        chunk = self._chunks.get()
        if isinstance(chunk, BaseException):
            raise chunk
        if chunk is not None:
            self._call(lambda: self._room.release())
        return chunk

    def end(self) -> None:
        """End the source, wherever it is, and wait until it has released its resources.

        A connection that keeps looking for its server, although it was told to end, is abandoned:
        it ends with this process.
        """
        self._started.wait()
        deadline = time.monotonic() + _TIMEOUT
        # Once may not be enough: an await with a time limit can swallow a cancellation.
        while self.is_alive() and time.monotonic() < deadline:
            task = self._task
            if task is not None:
                self._call(task.cancel)
            self.join(_CANCEL_EVERY)

    def _call(self, what: Callable[[], object]) -> None:
        try:
            self._loop.call_soon_threadsafe(what)
        except RuntimeError:  # the loop has ended meanwhile
            return


_SECONDS: Final = 10.0
_TRIES: Final = 3
"""Maximum number of failed reads in a row without any data."""


@dataclass(frozen=True, slots=True)
class NatsLog:
    """A log in a JetStream stream."""

    access: NatsAccess
    stream: str
    first: int
    last: int
    size: int
    borders: tuple[int, ...] = ()

    def read(self, first: int, last: int) -> Generator[tuple[int, bytes]]:
        """Yield the stored records between two sequences, over a connection of its own.

        Raises NatsUnavailable if NATS no longer answers.
        """
        return read_ahead(lambda: self._stored(first, last))

    def link_before(self, _sequence: int) -> None:
        """Return None: the link of a record is unknown before it is read."""

    def around(self, _time_ms: int) -> tuple[int, int]:
        """Return all records: their times are unknown."""
        return self.first - 1, self.last

    def explain(self, sequence: int) -> FoldmqError | None:
        """Return the error for a record that the broker cut off meanwhile; None: it is missing."""
        first = run_sync(self._first_now())
        if first <= sequence:
            return None
        return CutMeanwhile(first, f"log {self.stream}", "read it again, or from an archive")

    def place(self, _sequence: int) -> str:
        """Return an empty text: the name of the log suffices."""
        return ""

    async def _first_now(self) -> int:
        client = await self.access.open()
        try:
            return (await read_bounds(client, self.stream, _SECONDS))[0]
        finally:
            await disconnect(client)

    async def _stored(self, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        client = await self.access.open()
        try:
            failures = 0
            while True:
                try:
                    stored = read_stored(client, self.stream, first, last)
                    async with aclosing(stored):  # type: ignore[type-var] # an async generator
                        async for sequence, data in stored:
                            first, failures = sequence + 1, 0
                            yield sequence, data
                except LogUnavailable:
                    # the connection broke, and data in transit was lost; nats-py opens another one
                    failures += 1
                    if failures == _TRIES:
                        raise
                else:
                    return
        finally:
            await disconnect(client)


async def look_up(client: Client, access: NatsAccess, stream: str) -> NatsLog | None:
    """Return the current log; None if it does not exist; raises CorruptLog if it was emptied."""
    try:
        answer = await request_stream(client, stream, f"STREAM.INFO.{stream}", None, _SECONDS)
    except LostLog:
        return None
    state = answer["state"]
    first, last = state["first_seq"], state["last_seq"]
    if first > last > 0:
        raise CorruptLog(1, f"is gone with all others: stream {stream} was emptied")
    return NatsLog(access, stream, max(1, first), last, state["bytes"])
