"""Memory of a serving process: garbage collection, large blocks, and memory returned to the system.

Reference counts free nearly everything: the broker breaks its own cycles. The garbage collector
therefore finds little, but it examines all young objects, and the event loop stops meanwhile.
Python begins a collection when the number of objects has grown. Where connections, sessions and
subscriptions end as fast as new ones begin, the number does not grow while the young ones become
many, and a collection takes tens of milliseconds. :class:`GarbageCollector` collects them before
they are many.
"""

import asyncio
import ctypes
import gc
import time
from collections.abc import Callable
from typing import Any, Final

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE: Final = 16 * 1024 * 1024
"""Bytes up to which a block is taken from the heap."""
_KEPT: Final = 64 * 1024 * 1024
"""Bytes at the end of the heap that stay although they are free, until :func:`trim`."""

_QUIET: Final = 20
"""Turns per second below which the broker counts as idle."""
_ENDED: Final = 500
"""Connections that end before memory is returned to the system."""
_LOOK_EVERY: Final = 10.0
"""Seconds between two checks of how many have ended."""
_LOOKS: Final = 30
"""Checks after which memory is returned even if connections keep ending."""
_SHORT: Final = 0.002
"""Seconds of a collection of young objects below which the next one may be later."""
_LONG: Final = 0.004
"""Seconds of a collection of young objects above which the next one is sooner."""
_FULL: Final = 0.015
"""Seconds that a full collection may take, about."""
_SOONEST: Final = 0.02
_LATEST: Final = 0.25
"""Seconds between two collections of young objects."""


def _found(name: str) -> Callable[..., Any] | None:
    """Return a function of glibc, or None in another C library."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except OSError:
        return None


_malloc_trim, _mallopt = _found("malloc_trim"), _found("mallopt")


def trim() -> None:
    """Return free memory to the system, also from within the heap; other threads continue.

    The memory of thousands of closed connections is spread over the heap and would stay there.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


def keep_large_blocks() -> None:
    """Keep the memory of large payloads for the next ones.

    By default glibc maps each large block anew, and the kernel clears its pages: a third of the
    system time of payloads of 1 MiB.
    """
    if _mallopt is not None and _malloc_trim is not None:
        _mallopt(_M_MMAP_THRESHOLD, _LARGE)
        _mallopt(_M_TRIM_THRESHOLD, _KEPT)


def tune_collector() -> None:
    """Collect garbage cycles rarely, and never among the objects that exist now.

    A full collection of a large broker stops it for a tenth of a second or more.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(2_000, 2, 1_000_000)


class GarbageCollector:
    """Collects the garbage cycles of a serving process; ``turns`` counts those of its kernel."""

    def __init__(self, turns: Callable[[], int]) -> None:
        self._turns = turns
        self._spent = 0.0
        """Seconds spent on young objects: a full collection would take about as long."""

    async def collect_young(self) -> None:
        """Collect the objects created since the last time, while there are turns.

        This is done so often that each time takes a few milliseconds.
        """
        pause, before = _LATEST, self._turns()
        while True:
            await asyncio.sleep(pause)
            now = self._turns()
            if now != before:
                before, begun = now, time.thread_time()
                gc.collect(1)
                took = time.thread_time() - begun
                self._spent += took
                pause = _next_pause(pause, took)

    async def collect_when_idle(self) -> None:
        """Collect all garbage once a minute if the broker is idle then; return free memory.

        Objects that are too many for this are assumed to stay: they are no longer examined.
        """
        while True:
            await asyncio.sleep(60)
            before = self._turns()
            await asyncio.sleep(1)
            if self._turns() - before < _QUIET:
                if self._spent < _FULL:
                    gc.collect()
                else:
                    self._spent = 0.0
                    gc.freeze()
                await asyncio.to_thread(trim)


def _next_pause(pause: float, took: float) -> float:
    """Return the seconds until the next collection, from the duration of the last one."""
    if took > _LONG:
        return max(_SOONEST, pause * _LONG / took)
    return min(_LATEST, pause * 1.5) if took < _SHORT else pause


async def trim_after_peaks(ended: Callable[[], int]) -> None:
    """Return memory to the system once many connections have ended and no more are ending.

    ``ended`` returns how many have ended so far. A thread that allocates meanwhile waits for some
    tens of milliseconds.
    """
    trimmed = before = put_off = 0
    while True:
        await asyncio.sleep(_LOOK_EVERY)
        now = ended()
        if now - trimmed >= _ENDED:
            put_off += 1
            if now - before < _ENDED // 10 or put_off > _LOOKS:
                trimmed, put_off = now, 0
                await asyncio.to_thread(trim)
        before = now
