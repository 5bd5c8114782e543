"""The compacted stream of the projections, in memory: after a crash whole, or without its end."""

import asyncio
from collections.abc import AsyncIterator


class MemoryKeyedStore:
    """As ``eventstore.log.keyed_store.KeyedStore``; messages are kept as JetStream keeps them."""

    def __init__(self) -> None:
        self.history: list[tuple[int, str, bytes]] = []
        """Everything stored since the last clearing: sequence, key, message."""
        self._sequence = 0
        self.fail = False
        """Lose what is sent, and confirm nothing."""

    async def open(self) -> None:
        """There is nothing to be made."""

    async def last(self) -> int:
        await asyncio.sleep(0)
        return self._sequence

    async def read(self) -> AsyncIterator[tuple[str, bytes]]:
        latest = {key: (sequence, key, data) for sequence, key, data in self.history}
        for _, key, data in sorted(latest.values()):
            await asyncio.sleep(0)
            yield key, data

    async def put(self, key: str, data: bytes, *, gone: bool = False) -> None:
        del gone
        if not self.fail:
            self._sequence += 1
            self.history.append((self._sequence, key, data))

    async def confirm(self, key: str, data: bytes, last: int) -> bool:
        await asyncio.sleep(0)
        if self.fail or last != self._sequence:
            return False
        await self.put(key, data)
        return True

    async def clear(self) -> None:
        self.history.clear()

    def lose(self, count: int) -> None:
        """Lose the last messages, as a power cut may: the ones before them are back."""
        if count:
            del self.history[-count:]
            self._sequence = self.history[-1][0] if self.history else 0
