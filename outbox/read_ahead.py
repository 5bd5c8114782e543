"""Turns of the log that are read while a batch is sent, within a bound of bytes."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from outbox.log_reader import LogPortion

_TURN_BYTES = 256
"""Counted for a turn besides its messages."""
_MESSAGE_BYTES = 512
"""Counted for a message besides its topic, payload and properties: what its objects take."""


class ReadAhead:
    """A bounded buffer between the reader of the log and the sender."""

    def __init__(self, most: int) -> None:
        """``most`` is the number of bytes from which on the reader waits."""
        self._most = most
        self._size = 0
        self._portions: deque[tuple[LogPortion, int]] = deque()
        self._error: Exception | None = None
        self._filled = asyncio.Event()
        self._room = asyncio.Event()

    @property
    def waiting_ms(self) -> int:
        """Time of the oldest message that was read and is not taken yet; 0: there is none."""
        turns = (portion.messages for portion, _ in self._portions)
        return next((messages[0].time_ms for messages in turns if messages), 0)

    async def fill(self, portions: AsyncIterator[LogPortion]) -> None:
        """Read until cancelled; an error is raised by :meth:`next`, behind what was read."""
        try:
            async for portion in portions:
                while self._size > self._most:
                    self._room.clear()
                    await self._room.wait()
                size = _TURN_BYTES
                size += sum(_MESSAGE_BYTES + message.size for message in portion.messages)
                self._portions.append((portion, size))
                self._size += size
                self._filled.set()
        except Exception as error:  # noqa: BLE001 - the sender raises it
            self._error = error
            self._filled.set()

    async def next(self, seconds: float) -> LogPortion | None:
        """Return the next turn; None if there is none in this time."""
        if not self._portions and self._error is None:
            self._filled.clear()
            try:
                async with asyncio.timeout(max(0.0, seconds)):
                    await self._filled.wait()
            except TimeoutError:
                return None
        if not self._portions and self._error is not None:
            raise self._error
        portion, size = self._portions.popleft()
        self._size -= size
        self._room.set()
        return portion
