"""Detects a full disk and restarts the embedded NATS server when there is room.

A nats-server whose disk is full freezes the stream: it no longer answers appends, even when there
is room again, until it is restarted. So some bytes of the disk stay free, and a server that still
filled the disk is restarted once there is room, by the process that runs it.
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
_WATCH_SECONDS = 0.5


class DiskRecovery:
    """Monitors and repairs the store of the embedded server of a data directory.

    ``server`` is None in a broker process whose main process runs the server: the main process
    watches and restarts it (:meth:`watch`).
    """

    def __init__(self, datadir: DataDir, server: EmbeddedServer | None) -> None:
        self._server = server
        self._datadir = datadir

    def problem(self) -> str | None:
        """Return the reason why nothing can currently be stored, None when none is known."""
        if self._datadir.free_bytes() < RESERVE:
            return str(DiskFull(self._datadir.path))
        return self._write_error()

    def _write_error(self) -> str | None:
        return self._server.write_error() if self._server is not None else None

    async def watch(self) -> None:
        """Restart the server whenever its stream is frozen and there is room; never returns.

        For a process that runs the server and writes no log itself. Raises DiskFailed.
        """
        while True:
            await asyncio.sleep(_WATCH_SECONDS)
            with contextlib.suppress(NatsUnavailable):
                await self.restart()

    async def restart(self) -> None:
        """Restart a server whose stream is frozen, if that can help.

        Raises NatsUnavailable when only waiting helps.
        """
        if self._datadir.free_bytes() < RESERVE:
            raise NatsUnavailable(str(DiskFull(self._datadir.path)))
        error = self._write_error()
        if error is not None and self._server is not None:
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
        self._check(self._write_error() or "")

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
