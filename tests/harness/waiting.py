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

    `pause` is longer for a condition that takes time to look at.
    """
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"{what} within {seconds} s"
        time.sleep(pause)


async def happens(condition: Callable[[], object], what: str = "it") -> None:
    """Let the event loop run until the condition holds; fail when `what` never comes."""
    deadline = asyncio.get_running_loop().time() + TIMEOUT
    while not condition():
        assert asyncio.get_running_loop().time() < deadline, f"{what} within {TIMEOUT} s"
        await asyncio.sleep(0.002)
