"""Worker threads for long checks: hashing and signatures, beside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from actors.access.fair_queue import FairQueue
from actors.access.login_backoff import LoginRank
from actors.kernel.os_priority import lower_thread_priority

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Workers:
    """Runs functions in at most ``threads`` threads, fairly among addresses.

    Only running functions are passed to the threads. Waiting ones can be cancelled immediately; the
    caller limits their number.
    """

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._queue = FairQueue(threads)
        self._threads: ThreadPoolExecutor | None = None
        self._running = 0
        self._closing = False

    @property
    def waiting(self) -> int:
        """Number of functions waiting for a thread."""
        return self._queue.waiting

    async def run(
        self,
        queue_name: str,
        work: Callable[..., T],
        *arguments: Any,
        begun: Callable[[], object] | None = None,
        rank: Callable[[], LoginRank] = lambda: LoginRank.NEW,
    ) -> T:
        """Return the result of ``work(*arguments)``; once it runs, it cannot be cancelled.

        ``begun`` is called when a thread takes it. ``rank`` is as for :meth:`FairQueue.enter`.
        """
        self._running += 1
        try:
            await self._queue.enter(queue_name, rank)
        except BaseException:
            self._left()
            raise
        try:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    self._count, "foldmq-auth", lower_thread_priority
                )
            future = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except BaseException:  # the system cannot start a thread
            self._queue.leave()
            self._left()
            raise
        # The thread is busy even if its caller has left: the turn ends with the work.
        future.add_done_callback(self._done)
        if begun is not None:
            begun()
        return await asyncio.shield(future)

    def close(self) -> None:
        """End the threads once all functions are done."""
        self._closing = True
        self._end_threads()

    def _done(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()  # callers that still wait get the error
        self._queue.leave()
        self._left()

    def _left(self) -> None:
        self._running -= 1
        self._end_threads()

    def _end_threads(self) -> None:
        if self._closing and not self._running and self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
