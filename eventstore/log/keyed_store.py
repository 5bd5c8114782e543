"""One message for each key: the compacted stream of the projections.

It can be rebuilt from the log at any time. So writes do not wait for the disk, and a reader must
check that the stream is complete.
"""

import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Any

import nats.errors
import orjson

from eventstore.errors import EventStoreError, LogUnavailable, LostLog
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.jetstream import (
    Arrivals,
    api_prefix,
    publish_expecting,
    purge,
    read_bounds,
    read_info,
    request_stream,
    sending,
)

_BATCH = 1000
_BATCH_BYTES = 8 * 1024 * 1024
"""Bytes requested at a time: a server disconnects clients that leave too many unread."""
_INACTIVE_NS = 30_000_000_000
"""Time without a request after which JetStream removes a consumer, in case its reader crashed."""
_GONE_FOR = "24h"
"""Time for which JetStream keeps the message that marks a removed key."""
_WITH_TTL, _WITH_ASYNC = (2, 11), (2, 12)
"""Versions of NATS Server that introduced a setting."""


class KeyedStore:
    """A stream with the latest message of each key; written by one broker.

    Every method raises LogUnavailable when JetStream does not answer or refuses, and LostLog when
    the stream does not exist.
    """

    def __init__(self, nc: DirectClient, stream: str, prefix: str, *, replicas: int = 1) -> None:
        """Keys are subjects that begin with ``prefix``, which ends with a dot."""
        self._nc = nc
        self._stream = stream
        self._prefix = prefix
        self._replicas = replicas
        self._ttl = False

    async def open(self) -> None:
        """Create the stream, or recreate it if it has too few replicas."""
        version = self._nc.connected_server_version
        version_numbers = (version.major, version.minor)
        self._ttl = version_numbers >= _WITH_TTL
        config: dict[str, Any] = {
            "name": self._stream,
            "description": "foldmq's projections: rebuilt from the event log if they are missing",
            "subjects": [f"{self._prefix}>"],
            "storage": "file",
            "retention": "limits",
            "discard": "old",
            "max_msgs_per_subject": 1,
            "num_replicas": self._replicas,
            "allow_direct": True,
            "duplicate_window": 100_000_000,
        }
        if self._ttl:
            config["allow_msg_ttl"] = True
        if version_numbers >= _WITH_ASYNC and self._replicas == 1:
            config["persist_mode"] = "async"
        try:
            info = await read_info(self._nc, self._stream)
            if info["config"].get("num_replicas", 1) >= self._replicas:
                return
            # Some of its settings are for one replica only. It is rebuilt from the log.
            await request_stream(self._nc, self._stream, f"STREAM.DELETE.{self._stream}")
        except LostLog:
            pass
        await request_stream(self._nc, self._stream, f"STREAM.CREATE.{self._stream}", config)

    async def last(self) -> int:
        """Return the sequence of the last stored message."""
        return (await read_bounds(self._nc, self._stream))[1]

    async def read(self) -> AsyncIterator[tuple[str, bytes]]:
        """Yield key and data of all messages, in the order of storage; none without a stream."""
        # A consumer adds no headers; direct gets do, and parsing them would take most of the time.
        name = f"read{secrets.token_hex(8)}"
        config = {
            "name": name,
            "deliver_policy": "all",
            "ack_policy": "none",
            "mem_storage": True,
            "num_replicas": 1,
            "inactive_threshold": _INACTIVE_NS,
        }
        body = {"stream_name": self._stream, "config": config}
        method = f"CONSUMER.CREATE.{self._stream}.{name}"
        try:
            remaining = (await request_stream(self._nc, self._stream, method, body))["num_pending"]
        except LostLog:
            return
        prefix_length = len(self._prefix)
        arrivals: Arrivals[tuple[str, bytes]] = Arrivals(self._stream)
        inbox = self._nc.new_inbox()
        with sending(self._stream):
            subscription = await self._nc.listen(
                f"{inbox}.*", lambda subject, data: arrivals.add((subject, data))
            )
        try:
            most = max(_BATCH_BYTES, self._nc.max_payload + _BATCH_BYTES // 8)
            while remaining:
                batch, before = min(remaining, _BATCH), remaining
                reply = f"{inbox}.{remaining}"
                with sending(self._stream):
                    await self._nc.publish(
                        f"{api_prefix(self._nc)}CONSUMER.MSG.NEXT.{self._stream}.{name}",
                        orjson.dumps({"batch": batch, "max_bytes": most, "no_wait": True}),
                        reply=reply,
                    )
                ended = False
                while before - remaining < batch and not ended:
                    for subject, data in await arrivals.next():
                        if not subject.startswith(inbox):
                            yield subject[prefix_length:], data
                            remaining -= 1
                        elif subject == reply:  # otherwise it is the end of an earlier request
                            ended = True
                if remaining == before:
                    return  # the others were removed meanwhile
        finally:
            with contextlib.suppress(nats.errors.Error, EventStoreError):
                await self._nc.leave(subscription)
                method = f"CONSUMER.DELETE.{self._stream}.{name}"
                await request_stream(self._nc, self._stream, method, None)

    async def put(self, key: str, data: bytes, *, gone: bool = False) -> None:
        """Send a message; :meth:`confirm` checks that it arrived. ``gone``: the key was removed.

        Raises LogUnavailable when there is no connection.
        """
        headers = {"Nats-TTL": _GONE_FOR} if gone and self._ttl else None
        try:
            await self._nc.publish(self._prefix + key, data, headers=headers)
        except (nats.errors.Error, OSError) as error:
            raise LogUnavailable(f"cannot publish: {error or type(error).__name__}") from None

    async def confirm(self, key: str, data: bytes, last_sequence: int) -> bool:
        """Store a message if ``last`` is the previous sequence; return whether it was stored."""
        try:
            answer = await publish_expecting(self._nc, self._prefix + key, data, last_sequence)
        except (TimeoutError, nats.errors.Error, OSError) as error:
            raise LogUnavailable(
                f"stream {self._stream} does not answer: {error or 'time-out'}"
            ) from None
        return "error" not in answer

    async def clear(self) -> None:
        """Remove all messages."""
        await purge(self._nc, self._stream)
