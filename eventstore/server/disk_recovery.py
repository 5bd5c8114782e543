"""Detects a full disk and a store that is gone; restarts the embedded NATS server if that helps.

A nats-server whose disk is full freezes the stream: it no longer answers appends, even when there
is room again, until it is restarted. So some bytes of the disk stay free, and a server that still
filled the disk is restarted once there is room, by the process that runs it.

A nats-server does not notice that its files were deleted, replaced or cut short. While they are,
nothing is appended: the broker keeps its state in memory, and goes on if the files come back. It
does not end, because a service manager might start it again on an empty directory.
"""

import asyncio
import contextlib
import os

from eventstore.datadir import DataDir
from eventstore.durable_files import sync
from eventstore.errors import DiskFailed, DiskFull, NatsUnavailable
from eventstore.server.embedded_server import EmbeddedServer
from eventstore.stored_files import GONE, StoredFiles

RESERVE = 8 * 1024 * 1024
"""Bytes of the disk that stay free: more than the records that can be in flight."""
_WATCH_SECONDS = 0.5


class DiskRecovery:
    """Monitors and repairs the store of the embedded server of a data directory.

    ``server`` is None in a broker process whose main process runs the server: the main process
    watches and restarts it (:meth:`watch`). ``stream`` is the name of the log's stream; None: this
    process writes no log.
    """

    def __init__(
        self, datadir: DataDir, server: EmbeddedServer | None, stream: str | None = None
    ) -> None:
        self._server = server
        self._datadir = datadir
        self._files = StoredFiles(datadir.blocks(stream)) if stream is not None else None
        self.damage: str | None = None
        """What happened to the files of the log; None: nothing, as far as names and sizes show."""

    def problem(self, stored: int, first: int, *, idle: bool) -> str | None:
        """Return the reason why nothing can currently be stored, None when none is known.

        ``stored`` is the last acknowledged record, ``first`` the one at which the log may begin;
        ``idle``: no record waits for an acknowledgement.
        """
        self.damage = self._missing(stored, first, idle=idle)
        if self.damage is not None:
            return self.damage
        return self._no_room() or self._write_error()

    def _missing(self, stored: int, first: int, *, idle: bool = False) -> str | None:
        """Return what happened to the files of the log, in a sentence; None: nothing."""
        files = self._files
        damage = files.damage(stored, first, idle=idle) if files is not None else None
        if files is None or damage is None:
            return None
        lost = f"records {first:,} to {stored:,}" if damage in GONE else "its records"
        unsure = ""
        if stored > files.whole:
            since = f"those from {files.whole + 1:,} on"
            unsure = f", {since} were acknowledged after it was last seen whole"
        return (
            f"the store of the log in {self._datadir.jetstream} {damage}: {lost} are lost "
            f"unless it comes back{unsure}; put it back, or stop the broker and restore a backup "
            "(an empty directory begins a new log)"
        )

    def _no_room(self) -> str | None:
        """Return why the file system takes no data; None if it does."""
        try:
            if os.statvfs(self._datadir.path).f_flag & os.ST_RDONLY:
                return f"{self._datadir.path} is on a file system that became read-only"
            if self._datadir.free_bytes() < RESERVE:
                return str(DiskFull(self._datadir.path))
        except OSError as error:
            return f"data directory {self._datadir.path} cannot be read: {error.strerror}"
        return None

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

    async def restart(self, stored: int = 0, first: int = 0) -> None:
        """Restart a server whose stream is frozen, if that can help.

        ``stored`` and ``first`` are those of :meth:`problem`. Raises NatsUnavailable when only
        waiting helps.
        """
        self.damage = self._missing(stored, first)
        waits_for = self.damage or self._no_room()
        if waits_for is not None:
            raise NatsUnavailable(waits_for)
        if self._files is not None:
            self._files.forget_end()
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
                    sync(path)
