"""Waits for a condition, in a thread or on an event loop; only hanging tests fail."""

import asyncio
import time
from collections.abc import Callable

TIMEOUT = 60.0
"""Seconds after which what is waited for never comes."""


def until(
    condition: Callable[[], object],
    what: str = "it",
    seconds: float = TIMEOUT,
    pause: float = 0.02,
) -> None:
    """Wait until the condition holds; fail when `what` does not come within `seconds`.

    Looking takes half of the time at most: what is waited for needs the processor, too.
    """
    deadline = time.monotonic() + seconds
    while True:
        began = time.monotonic()
        if condition():
            return
        ended = time.monotonic()
        assert ended < deadline, f"{what} within {seconds} s"
        time.sleep(max(pause, ended - began))


async def happens(condition: Callable[[], object], what: str = "it") -> None:
    """Let the event loop run until the condition holds; fail when `what` never comes."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what} within {TIMEOUT} s"
        await asyncio.sleep(0.002)
