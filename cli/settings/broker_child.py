"""Child processes of the broker, which never outlive it."""

import asyncio
import contextlib
import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def belong_to_the_broker(nice: int) -> None:
    """Lower the priority below the broker's, and end with the broker in any case."""
    with contextlib.suppress(OSError):
        os.nice(nice)
    if sys.platform == "linux":
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


async def watch_stdin(end: asyncio.Event) -> None:
    """Set ``end`` when standard input ends: only the broker holds its other end."""

    class Watch(asyncio.Protocol):
        def connection_lost(self, _exc: Exception | None) -> None:
            end.set()

    await asyncio.get_running_loop().connect_read_pipe(Watch, sys.stdin)
