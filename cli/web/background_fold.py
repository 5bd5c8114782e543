"""Work for pages in the background: one piece at a time, and only while pages request it.

The histories of sessions are folded so, each that of a session in one log.
"""

import asyncio
import contextlib
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

from cli.web.timeline_marks import Mark, Marks, mark_kind
from cli.web.web_log_client import WebLogClient
from eventstore.format.positions import sequence_of
from projections.past.session_history import SessionEvent, SessionHistory
from protocol.errors import FoldmqError

Pause: TypeAlias = Callable[[int, int], Awaitable[None]]
"""To be awaited often, with the records or sessions that are done, and their total."""
MAX_HISTORIES = 4
"""Maximum number of cached histories."""
_MAX_MARKS = 5_000
"""Maximum marks of each kind kept for a session; beyond it, neighbours are joined."""
_SLICE = 0.01
"""Seconds of work before other requests are served."""
_TIMEOUT = 30.0
"""Seconds after the last request until work is cancelled."""
_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class Folding:
    """The progress of work whose result is not known yet."""

    done: int
    of: int
    """Records, or sessions."""

    @property
    def percent(self) -> int:
        """Its progress."""
        return 100 * self.done // self.of if self.of else 0


@dataclass(slots=True)
class _Running(Generic[_Result]):
    task: asyncio.Task[_Result]
    progress: Folding
    asked: float = field(default_factory=time.monotonic)


class BackgroundWork(Generic[_Result]):
    """Pieces of work by key."""

    def __init__(self) -> None:
        self._running: dict[Hashable, _Running[_Result]] = {}
        self._one = asyncio.Semaphore()

    async def result(
        self, key: Hashable, of: int, max_wait: float, work: Callable[[Pause], Awaitable[_Result]]
    ) -> _Result | Folding:
        """Return the result of work, begun unless it is running; raises what it raises.

        After ``max_wait`` seconds, returns the progress instead; the work continues.
        """
        held = self._running.get(key)
        if held is None:
            task = asyncio.create_task(self._run(key, work))
            held = self._running[key] = _Running(task, Folding(0, of))
        held.asked = time.monotonic()
        await asyncio.wait({held.task}, timeout=max_wait)
        if not held.task.done():
            return held.progress
        if self._running.get(key) is held:
            del self._running[key]
        return held.progress if held.task.cancelled() else held.task.result()

    def cancel(self, key: Hashable) -> None:
        """Cancel work."""
        held = self._running.pop(key, None)
        if held is not None:
            held.task.cancel()
            held.task.add_done_callback(_ignore)

    def close(self) -> None:
        """Cancel all work."""
        for key in list(self._running):
            self.cancel(key)

    async def _run(self, key: Hashable, work: Callable[[Pause], Awaitable[_Result]]) -> _Result:
        turn = time.monotonic()

        async def pause(count: int, of: int) -> None:
            nonlocal turn
            now = time.monotonic()
            if now - turn < _SLICE:
                return
            held = self._running[key]
            held.progress = Folding(count, of)
            if now - held.asked > _TIMEOUT:
                held.task.cancel()
            await asyncio.sleep(0)
            turn = time.monotonic()

        async with self._one:
            return await work(pause)


def _ignore(task: asyncio.Task[_Result]) -> None:
    """Retrieve the exception of a task, so that asyncio does not log it as lost."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()


class MarkedHistory(SessionHistory):
    """The history of a session, and the marks on its time axis."""

    def __init__(self, name: str, begin: int) -> None:
        super().__init__(name, begin, asyncio.Lock(), self._mark)
        self.marks = Marks(_MAX_MARKS)

    def _mark(self, event: SessionEvent) -> None:
        kind = mark_kind(event.event.e, getattr(event.event, "reason", ""))
        if kind is not None:
            count = getattr(event.event, "count", 1)
            self.marks.add(kind, Mark(event.time_ms, sequence_of(event.at), count))


class Histories:
    """Histories by session; the least recently used are dropped."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._held: OrderedDict[tuple[str, str], tuple[int, MarkedHistory]] = OrderedDict()
        self._work = BackgroundWork[MarkedHistory]()

    async def find(self, name: str, max_wait: float, log: str = "") -> MarkedHistory | Folding:
        """Return the history of a session up to the current end of the log.

        ``log`` names the log, empty for the only one. After ``max_wait`` seconds, returns the
        progress instead; folding continues. Raises NoLiveBroker, and the errors of reading the log.
        """
        key = log, name
        async with self._link.log(log) as source:
            epoch, history = self._held.get(key) or (-1, MarkedHistory(name, source.begin))
            if epoch != self._link.epoch or history.first_record != source.begin:
                self._forget(key)
                history = MarkedHistory(name, source.begin)
                self._held[key] = self._link.epoch, history
            end = source.last
        self._held.move_to_end(key)
        while len(self._held) > MAX_HISTORIES:
            self._forget(next(iter(self._held)))
        begun = history.done
        if begun >= end:
            return history

        async def grow(pause: Pause) -> MarkedHistory:
            async with self._link.log(log) as source:
                await history.grow(source, end, lambda at: pause(at - begun, end - begun))
            return history

        try:
            return await self._work.result(key, end - begun, max_wait, grow)
        except FoldmqError:
            self._forget(key)
            raise

    def close(self) -> None:
        """Cancel all folding."""
        self._work.close()

    def _forget(self, key: tuple[str, str]) -> None:
        self._held.pop(key, None)
        self._work.cancel(key)
