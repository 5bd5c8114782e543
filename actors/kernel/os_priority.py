"""Thread priorities when processors are scarce: the event loop first, then worker threads."""

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading

_NICENESS = 5
"""The niceness of worker threads. With a higher one, a thread would rarely run on a busy host,
possibly while it holds the interpreter's lock, and logins would wait for seconds."""
_SHORTEST = 100_000
"""Time slice in nanoseconds: the minimum of Linux."""
_USUAL = 0
"""The system's default."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""Number of the system call, which Python does not offer, by machine."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""sched_attr(2): size, policy, flags, niceness, priority; runtime, deadline and period in ns."""


def lower_thread_priority() -> None:
    """Lower the priority of the calling thread, if the system supports it.

    On Linux each thread has its own niceness, which the threads it starts inherit.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        lower = max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, lower)
        _run_for(_USUAL)


def set_short_time_slice() -> None:
    """Set a short time slice for the calling thread and the threads that it starts later.

    Linux (6.12 and later) runs threads with short time slices first. The event loop and the NATS
    server run briefly between two waits, and each message waits for each of them twice. Their share
    of the processors does not change.
    """
    if sys.platform == "linux":
        _run_for(_SHORTEST)


def _run_for(nanoseconds: int) -> None:
    """Set the time slice of the calling thread; a policy set by the operator stays."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    attributes = _ATTRIBUTES.pack(
        _ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, nanoseconds, 0, 0
    )
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # on failure it stays unchanged
