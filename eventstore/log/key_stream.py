"""The stream with the key store of a log, beside it: each write is on disk before the next one.

The key store is ``key_pages``; this module only stores what that returns, in the same order. The
stream keeps the latest message under each name. What an erasure makes outdated is removed, but may
stay readable in old blocks and copies: that is why it is sealed under a key that is destroyed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import nats.errors
import orjson

from eventstore.errors import LogUnavailable, LostLog
from eventstore.log.keyed_store import KeyedStore
from eventstore.nats.jetstream import read_info, request_stream

if TYPE_CHECKING:
    from collections.abc import Iterable

    from eventstore.log.key_pages import Blob, Change
    from eventstore.nats.direct_client import DirectClient

_WRITE_SECONDS = 10.0


class KeyStream:
    """The stream of a key store; written by one broker.

    Every method raises LogUnavailable when JetStream does not answer or refuses.
    """

    def __init__(self, nc: DirectClient, stream: str, prefix: str, *, replicas: int = 1) -> None:
        """Names are subjects that begin with ``prefix``, which ends with a dot."""
        self._nc = nc
        self._stream = stream
        self._prefix = prefix
        self._replicas = replicas

    async def open(self, *, must_exist: bool) -> None:
        """Create the stream if it is missing. Raises LostLog if it must exist."""
        try:
            await read_info(self._nc, self._stream)
        except LostLog:
            if must_exist:
                raise
            config: dict[str, Any] = {
                "name": self._stream,
                "description": "foldmq's keys of persons: they cannot be made again",
                "subjects": [f"{self._prefix}>"],
                "storage": "file",
                "retention": "limits",
                "discard": "new",
                "max_msgs_per_subject": 1,
                "num_replicas": self._replicas,
                "allow_direct": True,
                "deny_delete": False,
                "duplicate_window": 100_000_000,
            }
            await request_stream(self._nc, self._stream, f"STREAM.CREATE.{self._stream}", config)

    async def load(self) -> dict[str, bytes]:
        """Return everything that is stored, by name."""
        store = KeyedStore(self._nc, self._stream, self._prefix)
        return {name: data async for name, data in store.read()}

    async def apply(self, change: Change) -> None:
        """Store a change; when this returns, it is on disk, and what it made outdated is removed.

        If it fails, the previous root counts, or the new one: read the store again.
        """
        for blob in change.blobs:
            await self._put(blob)
        await self.remove(change.outdated)

    async def remove(self, names: Iterable[str]) -> None:
        """Remove what is not needed any more."""
        for name in names:
            body = {"filter": self._prefix + name}
            method = f"STREAM.PURGE.{self._stream}"
            await request_stream(self._nc, self._stream, method, body)

    async def _put(self, blob: Blob) -> None:
        subject = self._prefix + blob.name
        try:
            reply = await self._nc.request(subject, blob.data, timeout=_WRITE_SECONDS)
            answer = orjson.loads(reply.data)
        except (TimeoutError, nats.errors.Error, OSError, ValueError) as error:
            raise LogUnavailable(
                f"stream {self._stream} does not answer: {error or 'time-out'}"
            ) from None
        if "error" in answer or answer.get("stream") != self._stream:
            raise LogUnavailable(f"stream {self._stream} does not store {blob.name}: {answer}")
