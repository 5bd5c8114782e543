"""How much room the log takes and has: asked for now and then, told at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from eventstore.errors import EventStoreError

if TYPE_CHECKING:
    from collections.abc import Callable

    from actors.session import NodeContext

_LIFE = 5.0
"""Seconds for which what is known is good enough."""


class LogStorage:
    """What was found when it was last looked."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._looked = -_LIFE
        self._looking: asyncio.Task[None] | None = None
        self.stream_bytes: int | None = None
        """Bytes of the log in its stream, None before that is known."""
        self.disk_free: int | None = None
        """Bytes that the disk of the log has left, None when it is not ours to know."""
        self.free_bytes: Callable[[], int] | None = None
        """Tells the bytes that are left; set where the log is on a disk of this machine."""

    def refresh(self) -> asyncio.Task[None] | None:
        """Look again if that was some time ago; return what looks."""
        now = self._node.clock.monotonic()
        if self._looking is None and now - self._looked >= _LIFE:
            self._looked = now
            self._looking = asyncio.get_running_loop().create_task(self._look())
        return self._looking

    async def _look(self) -> None:
        try:
            if self.free_bytes is not None:
                self.disk_free = await asyncio.to_thread(self.free_bytes)
            self.stream_bytes = await self._node.log.size()
        except (EventStoreError, OSError):
            # The log's own writer tells of it when there is trouble.
            self.stream_bytes = None
        finally:
            self._looking = None
