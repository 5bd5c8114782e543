"""A few threads for checks that take long: hashing and signatures, beside the event loop."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, TypeVar

from actors.authn.fair_queue import FairQueue
from actors.kernel import lower_thread_priority

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


class Workers:
    """Runs functions in at most ``threads`` threads, for one address after the other.

    Nothing but what runs is handed to the threads. What waits is given up at once when nobody
    wants it any more, and how much waits is for the caller to bound.
    """

    def __init__(self, threads: int) -> None:
        self._count = threads
        self._lanes = FairQueue(threads)
        self._threads: ThreadPoolExecutor | None = None
        self._running = 0
        self._closing = False

    @property
    def waiting(self) -> int:
        """How many wait for a thread."""
        return self._lanes.waiting

    async def run(
        self,
        lane: str,
        work: Callable[..., T],
        *arguments: Any,
        begun: Callable[[], object] | None = None,
        last: Callable[[], bool] | None = None,
    ) -> T:
        """Return what ``work(*arguments)`` returns; cancelled once it runs, it runs to its end.

        ``begun`` is called when a thread has it. ``last`` says, whenever its turn
        would come, whether it has to wait until nothing else does.
        """
        self._running += 1
        try:
            await self._lanes.enter(lane, last=last)
        except BaseException:
            self._left()
            raise
        try:
            if self._threads is None:
                self._threads = ThreadPoolExecutor(
                    self._count, "foldmq-auth", lower_thread_priority
                )
            future = asyncio.get_running_loop().run_in_executor(self._threads, work, *arguments)
        except BaseException:  # the system has no thread for us
            self._lanes.leave()
            self._left()
            raise
        # A thread that works for nobody is busy all the same: its turn ends with the work.
        future.add_done_callback(self._done)
        if begun is not None:
            begun()
        return await asyncio.shield(future)

    def close(self) -> None:
        """Let the threads end once all that was asked for is done."""
        self._closing = True
        self._end_threads()

    def _done(self, future: asyncio.Future[Any]) -> None:
        if not future.cancelled():
            future.exception()  # whoever still waits is told, and nobody else needs to be
        self._lanes.leave()
        self._left()

    def _left(self) -> None:
        self._running -= 1
        self._end_threads()

    def _end_threads(self) -> None:
        if self._closing and not self._running and self._threads is not None:
            self._threads.shutdown(wait=False)
            self._threads = None
