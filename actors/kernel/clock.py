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
    """Where time comes from."""

    def stopwatch(self) -> float:
        """Return seconds to measure work in."""


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
    """Gives seconds to measure work in; read for each run of each actor, hence no method."""


class Timers:
    """Callbacks at deadlines, in one heap: a timer costs no task and no handle of the loop.

    ``arm(delay)`` is called when :meth:`run_due` should next be called, in seconds from now; it
    may be called again with a shorter delay. Neither timers nor such calls are cancelled: a
    callback looks whether it still has anything to do, and a call that finds another one on its
    way in time asks for no new one.
    """

    __slots__ = ("_arm", "_calls", "_heap", "_monotonic", "_serial", "lateness")

    def __init__(self, monotonic: Callable[[], float], arm: Callable[[float], object]) -> None:
        self._monotonic = monotonic
        self._arm = arm
        self._calls: list[float] = []
        """Deadlines for which a call is on its way, a heap."""
        self._heap: list[_Timer] = []
        """Deadline, number, and what to call; or a weak reference, and the method of what it is."""
        self._serial = itertools.count()
        self.lateness = 0.0
        """Seconds by which the timers that are being run are late: the process stood still."""

    def __len__(self) -> int:
        """Return the number of timers that wait."""
        return len(self._heap)

    def after(self, delay: float, callback: Callable[[], None]) -> None:
        """Call back once, ``delay`` seconds from now."""
        now = self._monotonic()
        heapq.heappush(self._heap, (now + delay, next(self._serial), callback, None))
        self._arm_for(now)

    def remind(self, delay: float, method: Callable[[], None]) -> None:
        """Call back a method of something that may be gone by then: the timer does not keep it."""
        now, bound = self._monotonic(), cast("MethodType", method)
        entry: _Timer = now + delay, next(self._serial), ref(bound.__self__), bound.__func__
        heapq.heappush(self._heap, entry)
        self._arm_for(now)

    def run_due(self) -> None:
        """Call back what is due; a callback that fails does not keep the others from theirs."""
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
