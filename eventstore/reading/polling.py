"""Waiting for a condition that has to be asked for again and again."""

from __future__ import annotations

import asyncio
import time


class Polling:
    """Pauses between two looks, for a bounded time from its creation on."""

    def __init__(self, pause: float, limit: float) -> None:
        """Pause ``pause`` seconds each time, ``limit`` seconds in all."""
        self._pause = pause
        self._deadline = time.monotonic() + limit

    @property
    def expired(self) -> bool:
        """The limit is over."""
        return time.monotonic() > self._deadline

    async def wait(self) -> None:
        """Pause once."""
        await asyncio.sleep(self._pause)
