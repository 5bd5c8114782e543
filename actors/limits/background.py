"""Threads that work beside the event loop and must not take its time."""

from __future__ import annotations

import contextlib
import os
import sys
import threading

_NICENESS = 10
"""Not more: a thread that never gets its turn may hold the interpreter's lock meanwhile."""


def give_way() -> None:
    """Have the calling thread run behind those of normal priority, where the system can do that.

    On Linux each thread has a niceness of its own, and hands it on to the threads it starts.
    """
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
