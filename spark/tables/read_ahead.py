"""Reading ahead: a thread with its own event loop fetches records before they are needed."""

from __future__ import annotations

import asyncio
import threading
import time
from queue import SimpleQueue
from typing import TYPE_CHECKING, Final, TypeAlias

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

Item: TypeAlias = tuple[int, bytes]

_CHUNK_ITEMS: Final = 256
_CHUNK_BYTES: Final = 1 << 20
_CHUNKS: Final = 8
"""Maximum chunks read ahead."""
_CANCEL_EVERY: Final = 0.2
_TIMEOUT: Final = 20.0


def read_ahead(source: Callable[[], AsyncIterator[Item]]) -> Iterator[Item]:
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
