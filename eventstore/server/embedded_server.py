"""The embedded NATS server, which keeps the log when no external one is configured.

It listens on loopback only, with a random password that only this user can read, keeps its store
in the data directory and syncs every message to disk before it acknowledges it. NATS clients use
a separate server: ``eventstore.server.client_server``.
"""

from collections.abc import Callable, Mapping
from typing import ClassVar, Final

from eventstore.datadir import DataDir
from eventstore.encryption import StoreKey
from eventstore.server.process import NatsProcess, Sync
from eventstore.server.store_encryption import check_blocks

DEFAULT_MAX_PAYLOAD: Final = 32 * 1024 * 1024

_UNLIMITED: Final = 1 << 60


class EmbeddedServer(NatsProcess):
    """The server of the log, in the data directory itself.

    ``max_payload`` is the largest message in bytes; for the rest see
    :class:`eventstore.server.process.NatsProcess`.
    """

    title: ClassVar[str] = "embedded NATS server"
    remedy: ClassVar[str] = (
        "copy it into an encrypted one with 'foldmq salvage', one with several logs with 'foldmq "
        "backup' and 'restore' (docs/encryption.md)"
    )

    def __init__(
        self,
        datadir: DataDir,
        *,
        max_payload: int = DEFAULT_MAX_PAYLOAD,
        sync: Sync = "always",
        key: StoreKey | None = None,
        log: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(datadir, max_payload=max_payload, sync=sync, key=key, log=log)

    def stored_streams(self) -> set[str]:
        """Return the names of the streams in the store, recovered or not."""
        return {path.name for path in self._datadir.jetstream.glob("jetstream/$G/streams/*")}

    def _check_store(self) -> None:
        super()._check_store()
        if self._key is not None:
            check_blocks(self._datadir, self._key, self._log)

    def write_error(self) -> str | None:
        """Return the first failed write that the running server logged, None when there is none.

        As long as this returns an error, the stream is frozen: see :meth:`restart`.
        """
        for level, text in self._logged():
            if level == "ERR" and "ritical write error" in text:
                return text
        return None

    def _server_name(self) -> str:
        return f"foldmq_{self._datadir.node()}"

    def _configuration(self) -> Mapping[str, object]:
        return {
            **self._common(),
            "authorization": {"user": self.user, "password": self.password, "timeout": 30},
            # a reader that requests a batch may be sent this much before it reads any of it
            "max_pending": max(256 * 1024 * 1024, 8 * self.max_payload),
            "write_deadline": "30s",
            # the default, three quarters of the free space at the start, is too low
            "jetstream": self._store(_UNLIMITED, 16 * 1024 * 1024),
        }
