"""The parts of a broker that its status is read from."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from actors.session.node_context import NodeContext
from eventstore.errors import EventStoreError

if TYPE_CHECKING:
    from actors.bridge.bridge_supervisor import BridgeSupervisor
    from actors.connection.admission import Admission
    from actors.maintenance.projector import Projector

_LIFE = 5.0
"""Maximum age of the values in seconds."""


class LogStorage:
    """The values of the last update."""

    def __init__(self, node: NodeContext) -> None:
        self._node = node
        self._looked = -_LIFE
        self._looking: asyncio.Task[None] | None = None
        self.stream_bytes: int | None = None
        """Bytes of the log in its stream; None before it is known."""
        self.disk_free: int | None = None
        """Free bytes on the disk of the log; None if unknown."""
        self.free_bytes: Callable[[], int] | None = None
        """Returns the free bytes; set only if the log is on a disk of this machine."""
        self.encryption = ""
        """What is encrypted at rest, as text; empty: nothing."""

    def refresh(self) -> asyncio.Task[None] | None:
        """Update the values if they are old; return the running update, None if there is none."""
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
            # The writer of the log reports failures.
            self.stream_bytes = None
        finally:
            self._looking = None


@dataclass(frozen=True, slots=True)
class StatusSources:
    """The parts of a broker that its status is read from."""

    node: NodeContext
    admission: Admission
    projector: Projector
    storage: LogStorage
    bridge: BridgeSupervisor | None
    baseline: int
    """Resident bytes of the process, without files, before it read the log."""
    destinations: Callable[[], list[dict[str, Any]]] = list
    """Returns a row for each destination of the outbox."""
