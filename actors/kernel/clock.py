"""Time, from one source that tests and simulations replace; and timers driven by it."""

from __future__ import annotations

import heapq
import itertools
import time
from typing import TYPE_CHECKING, Any, Protocol, cast
from weakref import ref

import structlog

from eventstore.log import Clock as JournalClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import MethodType

    _Timer = tuple[float, int, Callable[[], Any], Callable[[Any], Any] | None]

_log = structlog.get_logger("foldmq")


class Clock(JournalClock, Protocol):
    """The source of time."""

    def stopwatch(self) -> float:
        """Return seconds for measuring work."""

    def processor(self) -> float:
        """Return seconds of processor time of this thread."""


class SystemClock:
    """The time of the machine."""

    __slots__ = ()

    def time_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    stopwatch = staticmethod(time.perf_counter)
    """Returns seconds for measuring work; called for each run of each actor, hence not a method."""
    processor = staticmethod(time.thread_time)


class Timers:
    """Callbacks at deadlines, in one heap: a timer costs no task and no handle of the loop.

    ``arm(delay)`` is called when :meth:`run_due` should next be called, in seconds from now; it
    may be called again with a shorter delay. Neither timers nor such calls are cancelled: a
    callback checks whether there is still work, and a call is not requested while an earlier one is
    due in time.
    """

    __slots__ = ("_arm", "_calls", "_heap", "_monotonic", "_serial", "lateness")

    def __init__(self, monotonic: Callable[[], float], arm: Callable[[float], object]) -> None:
        self._monotonic = monotonic
        self._arm = arm
        self._calls: list[float] = []
        """Deadlines for which a call is scheduled, a heap."""
        self._heap: list[_Timer] = []
        """Deadline, number, and the callback; or a weak reference to an object, and its method."""
        self._serial = itertools.count()
        self.lateness = 0.0
        """Seconds by which the timers now running are late: the process was stopped."""

    def __len__(self) -> int:
        """Return the number of pending timers."""
        return len(self._heap)

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        """Call back once, ``delay`` seconds from now."""
        now = self._monotonic()
        heapq.heappush(self._heap, (now + delay, next(self._serial), callback, None))
        self._arm_for(now)

    def remind(self, delay: float, method: Callable[[], None]) -> None:
        """Call a method later. The timer does not keep its object alive."""
        now, bound = self._monotonic(), cast("MethodType", method)
        entry: _Timer = now + delay, next(self._serial), ref(bound.__self__), bound.__func__
        heapq.heappush(self._heap, entry)
        self._arm_for(now)

    def run_due(self) -> None:
        """Run the callbacks that are due; a failure of one does not affect the others."""
        if self._calls:
            heapq.heappop(self._calls)
        now = self._monotonic()
        heap = self._heap
        self.lateness = now - heap[0][0] if heap else 0.0
        due = []
        while heap and heap[0][0] <= now:
            due.append(heapq.heappop(heap)[2:])
        for target, method in due:
            try:
                if method is None:
                    target()
                elif (found := target()) is not None:
                    method(found)
            except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                _log.error("timer failed", exc_info=error)
        self._arm_for(now)

    def _arm_for(self, now: float) -> None:
        if self._heap and (not self._calls or self._heap[0][0] < self._calls[0]):
            deadline = self._heap[0][0]
            heapq.heappush(self._calls, deadline)
            self._arm(max(0.001, deadline - now))
