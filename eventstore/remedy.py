"""What keeps the embedded server from storing, and what helps.

A nats-server whose disk is full freezes the stream: it answers no append any more, also when
there is room again, until it is started anew. So the log is not written to the last byte of the
disk, and a server that ran into its end all the same is restarted once there is room.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from eventstore.errors import DiskFull, NatsUnavailable

if TYPE_CHECKING:
    from eventstore.datadir import DataDir
    from eventstore.embedded import EmbeddedServer

RESERVE = 8 * 1024 * 1024
"""Bytes of the disk that stay free: more than the records that can be on their way."""


class EmbeddedRemedy:
    """Looks after the embedded server's store."""

    def __init__(self, server: EmbeddedServer, datadir: DataDir) -> None:
        self._server = server
        self._datadir = datadir

    def complaint(self) -> str | None:
        """Return why nothing can be stored at present, None when nothing is known."""
        if self._datadir.free_bytes() < RESERVE:
            return str(DiskFull(self._datadir.path))
        return self._server.write_error()

    async def heal(self) -> None:
        """Restart a server whose stream is frozen, if that can help.

        Raises NatsUnavailable when there is nothing to be done but to wait.
        """
        if self._datadir.free_bytes() < RESERVE:
            raise NatsUnavailable(str(DiskFull(self._datadir.path)))
        if self._server.write_error() is not None:
            await self._server.restart()
