"""A connection that stays open while a stream runs, to poll for new records."""

from __future__ import annotations

import asyncio
import threading
from typing import TYPE_CHECKING

from eventstore.nats.connection import disconnect
from spark.tables.discovery import find_in_archive, find_in_nats, join_with_archive

if TYPE_CHECKING:
    from nats.aio.client import Client

    from spark.tables.nats_access import NatsAccess
    from spark.tables.nats_log import NatsLog
    from spark.tables.options import SourceOptions
    from spark.tables.stored_log import StoredLog


class PollingConnection:
    """Looks up logs; connects at first use and stays connected until closed. Not pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    def find(self) -> list[StoredLog]:
        """Return the current logs; raises as ``discovery.find_logs``."""
        old = find_in_archive(self._options)
        access = self._options.access
        stored: list[NatsLog] = []
        if access is not None:
            stored = self._run(access)
        return join_with_archive(self._options, stored, old)

    def close(self) -> None:
        """Disconnect."""
        loop, thread, client = self._loop, self._thread, self._client
        self._loop = self._thread = self._client = None
        if loop is None or thread is None:
            return
        if client is not None:
            asyncio.run_coroutine_threadsafe(disconnect(client), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()

    def __getstate__(self) -> SourceOptions:
        return self._options

    def __setstate__(self, options: SourceOptions) -> None:
        self.__init__(options)  # type: ignore[misc] # a reader in another process: not connected

    def _run(self, access: NatsAccess) -> list[NatsLog]:
        if self._loop is None:
            # a loop of its own thread answers the server's pings between two requests
            self._loop = asyncio.new_event_loop()
            self._thread = threading.Thread(
                target=self._loop.run_forever, name="foldmq-standing", daemon=True
            )
            self._thread.start()
        return asyncio.run_coroutine_threadsafe(self._look(access), self._loop).result()

    async def _look(self, access: NatsAccess) -> list[NatsLog]:
        if self._client is None:
            self._client = await access.open()
        return await find_in_nats(self._client, access, self._options.streams)
