"""Detects a full disk and restarts the embedded NATS server when there is room.

A nats-server whose disk is full freezes the stream: it no longer answers appends, even when there
is room again, until it is restarted. So some bytes of the disk stay free, and a server that still
filled the disk is restarted once there is room.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from eventstore.errors import DiskFailed, DiskFull, NatsUnavailable

if TYPE_CHECKING:
    from pathlib import Path

    from eventstore.datadir import DataDir
    from eventstore.server.embedded import EmbeddedServer

RESERVE = 8 * 1024 * 1024
"""Bytes of the disk that stay free: more than the records that can be in flight."""


class DiskRecovery:
    """Monitors and repairs the embedded server's store."""

    def __init__(self, server: EmbeddedServer, datadir: DataDir) -> None:
        self._server = server
        self._datadir = datadir

    def problem(self) -> str | None:
        """Return the reason why nothing can currently be stored, None when none is known."""
        if self._datadir.free_bytes() < RESERVE:
            return str(DiskFull(self._datadir.path))
        return self._server.write_error()

    async def restart(self) -> None:
        """Restart a server whose stream is frozen, if that can help.

        Raises NatsUnavailable when only waiting helps.
        """
        if self._datadir.free_bytes() < RESERVE:
            raise NatsUnavailable(str(DiskFull(self._datadir.path)))
        error = self._server.write_error()
        if error is not None:
            self._check(error)
            await self._server.restart()

    async def sync(self) -> None:
        """Sync the store: a server that ended may have written data without a sync.

        Raises DiskFailed.
        """
        try:
            await asyncio.to_thread(self._sync)
        except OSError as error:
            raise DiskFailed(self._datadir.path, f"{error.strerror}") from None
        self._check(self._server.write_error() or "")

    def _check(self, error: str) -> None:
        """Raise DiskFailed for an error after which the page cache may differ from the disk."""
        if "input/output error" in error:
            raise DiskFailed(self._datadir.path, error)

    def _sync(self) -> None:
        # the newest block may just have been created: its directory is synced as well
        for folder in self._datadir.jetstream.glob("jetstream/*/streams/FOLDMQ_LOG_*/msgs"):
            for path in [*folder.glob("*.blk"), folder]:
                with contextlib.suppress(FileNotFoundError):  # its records were cut off
                    _sync_one(path)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
