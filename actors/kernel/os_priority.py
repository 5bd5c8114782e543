"""Who runs first when processors are scarce: the event loop, then what works beside it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
import threading

_NICENESS = 5
"""Not more: a thread that never gets its turn may hold the interpreter's lock meanwhile, and on a
busy host logins would wait for seconds."""
_SHORTEST = 100_000
"""Nanoseconds for which a thread runs at a time while others wait: Linux takes no less."""
_USUAL = 0
"""As long as the system thinks right."""
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274}
"""Number of the system call, which Python does not have, by machine."""
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""sched_attr(2): size, policy, flags, niceness, priority; runtime, deadline and period in ns."""


def lower_thread_priority() -> None:
    """Have the calling thread run behind those of normal priority, where the system can do that.

    On Linux each thread has a niceness of its own, and hands it on to the threads it starts.
    """
    if sys.platform == "linux":
        thread = threading.get_native_id()
        lower = max(_NICENESS, os.getpriority(os.PRIO_PROCESS, thread))
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, thread, lower)
        _run_for(_USUAL)


def set_short_time_slice() -> None:
    """Have the calling thread run soon when it wakes, and what it starts from now on.

    Linux (6.12 and later) lets go first who wants to run for a short time. What the event loop and
    the NATS server have to do between two waits is short, and a message waits for both of them
    twice. Their part of the processors is what it was.
    """
    if sys.platform == "linux":
        _run_for(_SHORTEST)


def _run_for(nanoseconds: int) -> None:
    """Set for how long the calling thread runs at a time; an operator's own policy stays."""
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return
    niceness = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())
    attributes = _ATTRIBUTES.pack(
        _ATTRIBUTES.size, os.SCHED_OTHER, 0, niceness, 0, nanoseconds, 0, 0
    )
    ctypes.CDLL(None).syscall(number, 0, attributes, 0)  # refused: it stays as it is
