"""Processes on one virtual loop that can stand still one by one, as by SIGSTOP, and be killed.

What a process does runs in a context that names it, and what it asks the loop for inherits that
context. While the process is suspended the loop holds its callbacks and timers back, and what
arrives for it waits, as in the buffers of its sockets.
"""

from __future__ import annotations

import asyncio
import contextlib
import heapq
from collections import deque
from collections.abc import Callable, Iterator
from contextvars import Context, ContextVar
from typing import Any, cast

from simulation.loop import VirtualLoop

_current: ContextVar[Process | None] = ContextVar("process", default=None)


@contextlib.contextmanager
def _entered(process: Process | None) -> Iterator[None]:
    token = _current.set(process)
    try:
        yield
    finally:
        _current.reset(token)


def outside() -> contextlib.AbstractContextManager[None]:
    """Deliver messages in transit in the network, which do not need their sender."""
    return _entered(None)


class Process:
    """A process: its callbacks wait while it is suspended."""

    def __init__(self) -> None:
        self.suspended = False
        self.dead = False
        self._arrived: deque[tuple[Callable[..., object], tuple[Any, ...]]] = deque()
        self._due: list[asyncio.Handle] = []
        """Callbacks that would have run since it was suspended."""
        self._late: list[asyncio.Handle] = []
        """Timers that were due since then."""

    def inside(self) -> contextlib.AbstractContextManager[None]:
        """Do what this process does."""
        return _entered(self)

    def arrive(self, take: Callable[..., object], *arguments: Any) -> None:
        """Let the process take something from outside, behind what waits for it."""
        if self.dead:
            return
        if self.suspended or self._arrived:
            self._arrived.append((take, arguments))
            if not self.suspended:
                with outside():
                    asyncio.get_running_loop().call_soon(self._take_next)
        else:
            with self.inside():
                take(*arguments)

    def suspend(self) -> None:
        """Let the process stand still."""
        self.suspended = not self.dead

    def resume(self) -> None:
        """Go on as an event loop does: what was due, then what arrived, then timers."""
        if self.suspended:
            self.suspended = False
            loop = cast("Any", asyncio.get_running_loop())
            due, self._due = self._due, []
            late, self._late = self._late, []
            loop._ready.extend(due)
            with outside():
                for _ in self._arrived:
                    loop.call_soon(self._take_next)
            loop._ready.extend(late)

    def _take_next(self) -> None:
        if self.suspended:
            return  # as many are scheduled again when it continues
        if self._arrived:
            take, arguments = self._arrived.popleft()
            with self.inside():
                take(*arguments)

    def kill(self) -> None:
        """End the process; callbacks that were held run so that its tasks can be cancelled."""
        self._arrived.clear()
        self.resume()
        self.dead = True

    def hold(self, handle: asyncio.Handle, *, timer: bool) -> None:
        """Keep a callback until the process continues."""
        (self._late if timer else self._due).append(handle)


class _Callback(asyncio.Handle):
    """A callback of a process."""

    process: Process

    def _run(self) -> None:
        if self.process.suspended:
            self.process.hold(self, timer=False)
        else:
            super()._run()


class _Timer(asyncio.TimerHandle):
    """A timer of a process."""

    process: Process

    def _run(self) -> None:
        if self.process.suspended:
            self.process.hold(self, timer=True)
        else:
            super()._run()


class ProcessLoop(VirtualLoop):
    """A virtual loop on which several processes run."""

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> asyncio.Handle:
        process = _current.get() if context is None else context.get(_current)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        handle = _Callback(callback, args, self, context)
        handle.process = process
        cast("Any", self)._ready.append(handle)
        return handle

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Any = None
    ) -> asyncio.TimerHandle:
        process = _current.get() if context is None else context.get(_current)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        self._calls += 1
        timer = _Timer(when + self._calls * 1e-12, callback, args, self, context)
        timer.process = process
        found = cast("Any", self)
        heapq.heappush(found._scheduled, timer)
        cast("Any", timer)._scheduled = True
        return timer
