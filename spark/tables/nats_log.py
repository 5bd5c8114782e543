"""Logs in NATS: found by their streams, and read ahead of the decoder."""

from __future__ import annotations

from contextlib import aclosing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eventstore.errors import CorruptLog, CutMeanwhile, LogUnavailable, LostLog
from eventstore.log.record_reader import read_stored
from eventstore.nats.connection import disconnect
from eventstore.nats.jetstream import read_bounds, request_stream
from spark.runtime.sync_calls import run_sync
from spark.tables.read_ahead import read_ahead

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from nats.aio.client import Client

    from protocol.errors import FoldmqError
    from spark.tables.nats_access import NatsAccess

_SECONDS: Final = 10.0
_TRIES: Final = 3
"""Maximum number of failed reads in a row without any data."""


@dataclass(frozen=True, slots=True)
class NatsLog:
    """A log in a JetStream stream."""

    access: NatsAccess
    stream: str
    first: int
    last: int
    size: int
    borders: tuple[int, ...] = ()

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
        """Yield the stored records between two sequences, over a connection of its own.

        Raises NatsUnavailable if NATS no longer answers.
        """
        return read_ahead(lambda: self._stored(first, last))

    def link_before(self, _sequence: int) -> None:
        """Return None: the link of a record is unknown before it is read."""

    def around(self, _time_ms: int) -> tuple[int, int]:
        """Return all records: their times are unknown."""
        return self.first - 1, self.last

    def explain(self, sequence: int) -> FoldmqError | None:
        """Return the error for a record that the broker cut off meanwhile; None: it is missing."""
        first = run_sync(self._first_now())
        if first <= sequence:
            return None
        return CutMeanwhile(first, f"log {self.stream}", "read it again, or from an archive")

    def place(self, _sequence: int) -> str:
        """Return an empty text: the name of the log suffices."""
        return ""

    async def _first_now(self) -> int:
        client = await self.access.open()
        try:
            return (await read_bounds(client, self.stream, _SECONDS))[0]
        finally:
            await disconnect(client)

    async def _stored(self, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        client = await self.access.open()
        try:
            failures = 0
            while True:
                try:
                    stored = read_stored(client, self.stream, first, last)
                    async with aclosing(stored):  # type: ignore[type-var] # an async generator
                        async for sequence, data in stored:
                            first, failures = sequence + 1, 0
                            yield sequence, data
                except LogUnavailable:
                    # the connection broke, and data in transit was lost; nats-py opens another one
                    failures += 1
                    if failures == _TRIES:
                        raise
                else:
                    return
        finally:
            await disconnect(client)


async def look_up(client: Client, access: NatsAccess, stream: str) -> NatsLog | None:
    """Return the current log; None if it does not exist; raises CorruptLog if it was emptied."""
    try:
        answer = await request_stream(client, stream, f"STREAM.INFO.{stream}", None, _SECONDS)
    except LostLog:
        return None
    state = answer["state"]
    first, last = state["first_seq"], state["last_seq"]
    if first > last > 0:
        raise CorruptLog(1, f"is gone with all others: stream {stream} was emptied")
    return NatsLog(access, stream, max(1, first), last, state["bytes"])
