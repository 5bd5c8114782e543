"""The histories of sessions for pages: folded in the background, a few at a time.

A history is that of a session in one log.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cli.web.timeline_marks import Mark, Marks, mark_kind
from eventstore.format.positions import sequence_of
from projections.past.session_history import SessionHistory
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from cli.web.web_log_client import WebLogClient
    from projections.past.session_history import SessionEvent

MAX_HISTORIES = 4
"""Maximum number of cached histories."""
_MAX_MARKS = 5_000
"""Maximum marks of each kind kept for a session; beyond it, neighbours are joined."""
_SLICE = 0.01
"""Seconds of folding before other requests are served."""
_TIMEOUT = 30.0
"""Seconds after the last request until folding is cancelled."""


@dataclass(frozen=True, slots=True)
class Folding:
    """A history, or a difference, that is not complete yet."""

    done: int
    of: int
    """Records, or sessions."""

    @property
    def percent(self) -> int:
        """Its progress."""
        return 100 * self.done // self.of if self.of else 0


class _AbandonedError(Exception):
    """The history is no longer requested."""


class MarkedHistory(SessionHistory):
    """The history of a session, and the marks on its time axis."""

    def __init__(self, name: str, begin: int) -> None:
        super().__init__(name, begin, asyncio.Lock(), self._mark)
        self.marks = Marks(_MAX_MARKS)

    def _mark(self, one: SessionEvent) -> None:
        kind = mark_kind(one.event.e, getattr(one.event, "reason", ""))
        if kind is not None:
            count = getattr(one.event, "count", 1)
            self.marks.add(kind, Mark(one.time_ms, sequence_of(one.at), count))


@dataclass(slots=True)
class _HeldHistory:
    history: MarkedHistory
    log: str
    epoch: int
    asked: float
    progress: Folding = field(default_factory=lambda: Folding(0, 0))
    task: asyncio.Task[None] | None = None


class Histories:
    """Histories by session; the least recently used are dropped."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._held: OrderedDict[tuple[str, str], _HeldHistory] = OrderedDict()
        self._one = asyncio.Semaphore()

    async def find(self, name: str, max_wait: float, log: str = "") -> MarkedHistory | Folding:
        """Return the history of a session up to the current end of the log.

        ``log`` names the log, empty for the only one. After ``max_wait`` seconds, returns the
        progress instead; folding continues. Raises NoLiveBroker, and the errors of reading the log.
        """
        key = log, name
        async with self._link.log(log) as source:
            held = self._held.get(key)
            outdated = held is not None and (
                held.epoch != self._link.epoch or held.history.first_record != source.begin
            )
            if held is None or outdated:
                self._forget(key)
                history = MarkedHistory(name, source.begin)
                now = time.monotonic()
                held = self._held[key] = _HeldHistory(history, log, self._link.epoch, now)
            last = source.last
        self._held.move_to_end(key)
        held.asked = time.monotonic()
        while len(self._held) > MAX_HISTORIES:
            self._forget(next(iter(self._held)))
        if held.task is None:
            if held.history.done >= last:
                return held.history
            held.task = asyncio.create_task(self._grow(held, last))
        task = held.task
        await asyncio.wait({task}, timeout=max_wait)
        if not task.done():
            return held.progress
        if held.task is task:  # no concurrent request was faster
            held.task = None
        try:
            task.result()
        except (_AbandonedError, asyncio.CancelledError):
            return held.progress
        except FoldmqError:
            self._forget(key)
            raise
        return held.history

    def close(self) -> None:
        """Cancel all folding."""
        for key in list(self._held):
            self._forget(key)

    async def _grow(self, held: _HeldHistory, last: int) -> None:
        history = held.history
        begun = history.done
        turn = time.monotonic()

        async def pause(sequence: int) -> None:
            nonlocal turn
            now = time.monotonic()
            if now - turn < _SLICE:
                return
            held.progress = Folding(sequence - begun, last - begun)
            if now - held.asked > _TIMEOUT:
                raise _AbandonedError
            await asyncio.sleep(0)
            turn = time.monotonic()

        held.progress = Folding(0, last - begun)
        async with self._one, self._link.log(held.log) as source:
            await history.grow(source, last, pause)

    def _forget(self, key: tuple[str, str]) -> None:
        held = self._held.pop(key, None)
        if held is not None and held.task is not None:
            held.task.cancel()
            held.task.add_done_callback(_ignore)


def _ignore(task: asyncio.Task[None]) -> None:
    """Retrieve the exception of a task, so that asyncio does not log it as lost."""
    with contextlib.suppress(asyncio.CancelledError):
        task.exception()
