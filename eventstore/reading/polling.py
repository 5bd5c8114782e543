"""Polling of a condition."""

import asyncio
import time


class Polling:
    """Pauses between polls, with a time limit that begins at its creation."""

    def __init__(self, pause: float, limit: float) -> None:
        """Pause ``pause`` seconds each time, ``limit`` seconds in all."""
        self._pause = pause
        self._deadline = time.monotonic() + limit

    @property
    def expired(self) -> bool:
        """Whether the limit is reached."""
        return time.monotonic() > self._deadline

    async def wait(self) -> None:
        """Pause once."""
        await asyncio.sleep(self._pause)
