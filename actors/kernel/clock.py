"""Time, from one source that tests and simulations replace; and timers driven by it."""

from __future__ import annotations

import heapq
import itertools
import time
from collections.abc import Callable
from typing import Final, Protocol

import structlog

_log = structlog.get_logger("foldmq")


class Clock(Protocol):
    """The source of time: a machine, or a simulation."""

    def time_ms(self) -> int:
        """Return Unix time in milliseconds, which jumps when it is set."""

    def monotonic(self) -> float:
        """Return seconds that never go back."""

    def stopwatch(self) -> float:
        """Return seconds for measuring work."""

    def processor(self) -> float:
        """Return seconds of processor time of this thread."""

    def elapsed_ms(self) -> int:
        """Return milliseconds since any moment, those in which the machine sleeps included.

        Setting the time of the machine does not change them.
        """


_ELAPSED: Final[int] = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The time of the machine."""

    def elapsed_ms(self) -> int:
        """Return milliseconds since the machine started."""
        return time.clock_gettime_ns(_ELAPSED) // 1_000_000

    def time_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return time.time_ns() // 1_000_000

    def monotonic(self) -> float:
        """Return seconds that never go back."""
        return time.monotonic()

    stopwatch = staticmethod(time.perf_counter)
    """Returns seconds for measuring work; called for each run of each actor, hence not a method."""
    processor = staticmethod(time.thread_time)


_JUMP_MS: Final[int] = 2000
"""Smallest difference in milliseconds that is a jump. Smaller ones are made up for gradually."""
_SLEW_MS: Final[int] = 100
"""Most milliseconds of such a difference that one call of :meth:`LogClock.check` makes up for."""


class LogClock:
    """The clock of a log: it passes steadily, and knows by how much the machine's time jumped.

    Two times are read from it. :meth:`steady_ms` never jumps: expiries and delays are measured with
    it. :meth:`time_ms` is the time shown to people, and follows the machine's: it is the steady
    time plus all jumps in the log.
    """

    def __init__(self, machine: Clock) -> None:
        self._machine = machine
        self._offset_ms = machine.time_ms() - machine.elapsed_ms()
        """Steady time at which the count of elapsed milliseconds is 0."""
        self.jumped_ms = 0
        """Sum of all jumps in the log."""
        self.monotonic: Callable[[], float] = machine.monotonic
        """Returns seconds that never go back."""
        self.stopwatch: Callable[[], float] = machine.stopwatch
        """Returns seconds for measuring work."""
        self.processor: Callable[[], float] = machine.processor
        """Returns seconds of processor time of this thread."""

    def steady_ms(self) -> int:
        """Return Unix time in milliseconds without the jumps of the clock."""
        return self._machine.elapsed_ms() + self._offset_ms

    def time_ms(self) -> int:
        """Return Unix time in milliseconds."""
        return self._machine.elapsed_ms() + self._offset_ms + self.jumped_ms

    def ahead_ms(self) -> int:
        """Return by how many milliseconds the machine's time is ahead of this clock."""
        return self._machine.time_ms() - self.time_ms()

    def resume(self, last_ms: int, jumped_ms: int, longest_ms: int) -> int:
        """Continue a log after its last record; return by how much the clock jumped, or 0.

        ``last_ms`` is the record's steady time, ``jumped_ms`` the sum of the jumps up to it. A time
        before it is a jump back; one that is more than ``longest_ms`` later (0: any) a jump
        forward.
        """
        now = self._machine.time_ms()
        self.jumped_ms = jumped_ms
        gap = now - jumped_ms - last_ms
        if gap < -_JUMP_MS or 0 < longest_ms < gap:
            self.jumped_ms += gap
            self._offset_ms = last_ms - self._machine.elapsed_ms()
            return gap
        self._offset_ms = max(now - jumped_ms, last_ms) - self._machine.elapsed_ms()
        return 0

    def check(self) -> int:
        """Follow the machine's time; return by how many milliseconds it jumped, or 0."""
        ahead = self.ahead_ms()
        if abs(ahead) < _JUMP_MS:
            self._offset_ms += max(-_SLEW_MS, min(_SLEW_MS, ahead))
            return 0
        self.jumped_ms += ahead
        return ahead


_AT_ONCE, _REMOVED_AT_ONCE = 256, 2048
"""Maximum number of timers run in one iteration of the event loop, since those of many clients may
be due at the same time, and of timers removed from the heap, most of which may be cancelled."""


_REBUILT_AT_MOST = 32_768
"""Maximum length of a heap that is rebuilt without its cancelled timers, which takes 4 ms."""


class Timer:
    """A callback at a deadline; see :meth:`Timers.after`."""

    __slots__ = ("_timers", "callback")

    def __init__(self, timers: Timers, callback: Callable[[], None]) -> None:
        self._timers = timers
        self.callback: Callable[[], None] | None = callback
        """None once the timer has run or was cancelled."""

    def cancel(self) -> None:
        """Do not call back, and drop the reference to the callback's object."""
        if self.callback is not None:
            self.callback = None
            self._timers.cancelled += 1


class Timers:
    """Callbacks at deadlines, in one heap: a timer needs no task and no handle of the loop.

    ``arm(delay)`` requests a call of :meth:`run_due` in ``delay`` seconds; it may be called again
    with a shorter delay, but not while an earlier call is due in time. A cancelled timer stays in
    the heap, without its callback, until it is due, or until many timers of a heap of at most
    32,768 are cancelled. If many timers are due, each call runs some of them, in order.
    """

    def __init__(self, monotonic: Callable[[], float], arm: Callable[[float], object]) -> None:
        self._monotonic = monotonic
        self._arm = arm
        self._calls: list[float] = []
        """Deadlines for which a call is scheduled, a heap."""
        self._heap: list[tuple[float, int, Timer]] = []
        """Deadline, number, and the timer."""
        self._serial = itertools.count()
        self.cancelled = 0
        """Number of cancelled timers in the heap."""
        self.lateness = 0.0
        """Seconds by which the timers now running are late, if the process was suspended."""

    def __len__(self) -> int:
        """Return the number of pending timers."""
        return len(self._heap)

    def after(self, delay: float, callback: Callable[[], None]) -> Timer:
        """Call back once, ``delay`` seconds from now, unless the timer is cancelled.

        Timers of an actor end with it: see :meth:`actors.kernel.actor.LoopActor.start_timer`.
        """
        if self.cancelled > _REMOVED_AT_ONCE // 4:
            self._remove_cancelled()
        now, timer = self._monotonic(), Timer(self, callback)
        heapq.heappush(self._heap, (now + delay, next(self._serial), timer))
        self._arm_for(now)
        return timer

    def _remove_cancelled(self) -> None:
        """Remove cancelled timers if there are many and the heap is not too long."""
        heap = self._heap
        if 3 * self.cancelled > len(heap) and len(heap) < _REBUILT_AT_MOST:
            before = len(heap)
            heap[:] = [entry for entry in heap if entry[2].callback is not None]
            heapq.heapify(heap)
            self.cancelled -= before - len(heap)

    def run_due(self) -> None:
        """Run the callbacks that are due; a failure of one does not affect the others."""
        if self._calls:
            heapq.heappop(self._calls)
        now = self._monotonic()
        heap = self._heap
        self.lateness = now - heap[0][0] if heap else 0.0
        due: list[Timer] = []
        room = _REMOVED_AT_ONCE
        while heap and heap[0][0] <= now and room and len(due) < _AT_ONCE:
            room -= 1
            timer = heapq.heappop(heap)[2]
            if timer.callback is not None:
                due.append(timer)
            else:
                self.cancelled -= 1
        for timer in due:
            callback, timer.callback = timer.callback, None
            try:
                if callback is not None:
                    callback()
                else:  # an earlier one has just cancelled it
                    self.cancelled -= 1
            except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                _log.error("timer failed", exc_info=error)
        self._arm_for(now)

    def _arm_for(self, now: float) -> None:
        if self._heap and (not self._calls or self._heap[0][0] < self._calls[0]):
            deadline = self._heap[0][0]
            heapq.heappush(self._calls, deadline)
            self._arm(max(0.001, deadline - now))
