"""The log of a node in JetStream: its bounds, reading it and cutting it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from enum import Enum
from typing import TYPE_CHECKING, TypeVar

import nats.errors
import orjson

from eventstore.errors import CorruptLog, EventStoreError, LogUnavailable, LostLog
from eventstore.format.records import Record, link_of, message_id
from eventstore.log.journal import Clock
from eventstore.log.key_file import KeyReader
from eventstore.log.keyed_store import KeyedStore
from eventstore.log.log_writer import VERDICT_EVERY, VERDICTS, LogWriter
from eventstore.log.record_reader import LogTail, read_records, read_some, read_tail
from eventstore.log.shared_keys import Keys
from eventstore.log.watermark import Watermark
from eventstore.nats.direct_client import DirectClient
from eventstore.nats.jetstream import (
    MAX_WAIT,
    WRONG_LAST_SEQUENCE,
    ServerWatch,
    purge,
    read_bounds,
    read_info,
)

if TYPE_CHECKING:
    from eventstore.server.disk_recovery import DiskRecovery

_ANSWER_SECONDS = 2.0
_PAUSE_SECONDS = 0.1
_ATTEMPTS = 3


class Appended(Enum):
    """The result of an append."""

    STORED = "stored"
    REFUSED = "refused"
    """The log ends at another record."""
    UNKNOWN = "unknown"
    """JetStream did not answer: the record may be stored later."""


async def _attempt(
    nc: DirectClient, subject: str, data: bytes, headers: dict[str, str], place: int
) -> Appended:
    try:
        reply = await nc.request(subject, data, timeout=_ANSWER_SECONDS, headers=headers)
        answer = orjson.loads(reply.data)
    except (TimeoutError, nats.errors.Error, ValueError, OSError):
        return Appended.UNKNOWN
    error = answer.get("error")
    if error is None:
        return Appended.STORED if answer.get("seq") == place else Appended.REFUSED
    if error.get("err_code") == WRONG_LAST_SEQUENCE:
        return Appended.REFUSED
    return Appended.UNKNOWN


T = TypeVar("T")

_READS, _READ_SECONDS = 4, 2.5
"""Number of the attempts to ask replicas before the last one, and their duration in seconds."""


class EventLog:
    """The log of one node: a stream, accessed through a NATS connection."""

    def __init__(
        self,
        nc: DirectClient,
        stream: str,
        subject: str,
        *,
        projections: KeyedStore,
        watermark: Watermark | None = None,
        recovery: DiskRecovery | None = None,
        max_msg_size: int = -1,
        refused: int = 0,
        replicas: int = 1,
        max_wait: float = MAX_WAIT,
    ) -> None:
        """``replicas`` is the number of the stream's replicas, each on a separate server.

        ``max_wait`` is for reading, see :class:`ServerWatch`.
        """
        self.watermark = watermark
        self.replicas = replicas
        """The number of the stream's replicas."""
        self._watch = ServerWatch(nc, f"stream {stream}", max_wait)
        self._max_msg_size = max_msg_size
        self._refused = refused
        self._nc = nc
        self._stream = stream
        self._subject = subject
        self._recovery = recovery
        self._writer: LogWriter | None = None
        self.first = 1
        """Stream sequence at which the log begins; known after :meth:`tail`."""
        self.projections = projections
        """The store of the projections."""
        self.keys: Keys | None = None
        """The keys of sealed contents; None: the broker has none."""
        self.key_reader: KeyReader | None = None
        """The keys of the log of another process."""

    async def tail(self) -> LogTail:
        """Return the end of the log, and determine its beginning.

        Raises CorruptLog when the log ends before a record that is known to have been stored, and
        LogUnavailable when JetStream does not answer.
        """
        looks = 1 if self.replicas == 1 else VERDICTS
        # The beginning is read first: then the cut that it comes from was recorded before the end
        # that is found, even while another node writes.
        bounds = await self._until_answered(
            lambda seconds: read_bounds(self._nc, self._stream, seconds)
        )
        tail = await self._until_answered(lambda seconds: self._checked_tail(looks, seconds))
        if tail.sequence:
            self.first = bounds[0]
        return tail

    async def _until_answered(self, ask: Callable[[float | None], Awaitable[T]]) -> T:
        """Return the result of ``ask``; with replicas, of the first one that answers in time."""
        for seconds in self._waits:
            with contextlib.suppress(LogUnavailable):
                answer = await ask(seconds)
                self._watch.answered()
                return answer
            await self._watch.unanswered()
        answer = await ask(None)
        self._watch.answered()
        return answer

    @property
    def _waits(self) -> Iterable[float]:
        """Seconds to wait for an answer, for each attempt before the last one."""
        return () if self.replicas == 1 else (_READ_SECONDS,) * _READS

    async def _checked_tail(self, looks: int, seconds: float | None) -> LogTail:
        """Return the end of the log, if one of ``looks`` attempts finds it undamaged."""
        noted = self.watermark.read() if self.watermark is not None else None
        try:
            tail = await read_tail(self._nc, self._stream, self._subject, seconds)
            if self.watermark is not None and noted is not None:
                self.watermark.check_end(tail.sequence, noted)
        except (CorruptLog, LostLog):
            if looks == 1:
                raise
            await asyncio.sleep(VERDICT_EVERY)
            return await self._checked_tail(looks - 1, seconds)
        return tail

    async def size(self) -> int:
        """Return the size of the log in the stream in bytes."""
        return int((await read_info(self._nc, self._stream))["state"]["bytes"])

    async def cut(self, first: int) -> None:
        """Remove the records before a sequence; the cut (``LogCut``) must already be recorded.

        Raises LogUnavailable when JetStream does not answer; the records may be removed
        nevertheless.
        """
        if self._writer is not None:
            self._writer.first = max(self._writer.first, first)
        await purge(self._nc, self._stream, first)
        self.first = max(self.first, first)

    async def append_behind(self, tail: LogTail, data: bytes) -> Appended:
        """Append a record after the last known record of a log, or not at all.

        The server does not compare the link of that record: on NATS 2.15.1 a restarted replica may
        not know it, and reject a record that the others store. Readers compare it.
        """
        link = link_of(data)
        headers = {
            "Nats-Expected-Last-Sequence": str(tail.sequence),
            "Nats-Msg-Id": message_id(link),
        }
        for _ in range(_ATTEMPTS):
            outcome = await _attempt(self._nc, self._subject, data, headers, tail.sequence + 1)
            if outcome is not Appended.UNKNOWN:
                return outcome
            await asyncio.sleep(_PAUSE_SECONDS)
            with contextlib.suppress(LogUnavailable):
                now = await read_tail(self._nc, self._stream, self._subject, _ANSWER_SECONDS)
                if now.sequence > tail.sequence:
                    return Appended.STORED if now.link == link else Appended.REFUSED
        return Appended.UNKNOWN

    async def read(
        self, first: int, last: int, *, whole_turns: bool = False
    ) -> AsyncIterator[Record]:
        """Yield the records between two stream sequences (both included), in order.

        With ``whole_turns``, for the fold alone, events of turns are not expanded.

        The caller checks that none is missing. Raises Fenced when one is missing because another
        broker writes the log of this writer and has cut it, CorruptLog for a record whose checksum
        is wrong, LogUnavailable when JetStream does not answer.
        """
        expected = first
        async for record in self._read(first, last, whole_turns):
            if record.sequence != expected:
                await self._check_fence()
            yield self.opened(record)
            expected = record.sequence + 1
        if expected <= last:
            await self._check_fence()

    async def _read(self, first: int, last: int, whole_turns: bool) -> AsyncIterator[Record]:
        """With replicas, continue at another server when one no longer answers."""
        for seconds in (*self._waits, None):
            try:
                records = read_records(
                    self._nc, self._stream, first, last, seconds, whole_turns=whole_turns
                )
                async for record in records:
                    self._watch.answered()
                    yield record
                    first = record.sequence + 1
            except LogUnavailable:
                if seconds is None:
                    raise
                await self._watch.unanswered()
            else:
                self._watch.answered()
                return

    async def read_some(self, sequences: Iterable[int]) -> list[Record]:
        """Return the records with these stream sequences, and possibly some between them.

        Raises CorruptLog when one of them is missing or damaged, Fenced when it is missing because
        another broker writes the log of this writer and has cut it, LogUnavailable when JetStream
        does not answer.
        """
        requested = list(sequences)
        try:
            records = await self._until_answered(
                lambda seconds: read_some(self._nc, self._stream, requested, seconds)
            )
        except CorruptLog:
            await self._check_fence()
            raise
        return [self.opened(record) for record in records]

    def opened(self, record: Record) -> Record:
        """Return a record with its contents opened, as far as their keys exist."""
        key = self.content_key
        if record.sealed and key is not None:
            record.open(key, None if self.keys is None else self.keys.cipher)
        return record

    @property
    def content_key(self) -> Callable[[int], bytes | None] | None:
        """Returns the keys of sealed contents by their numbers; None: they are not known here."""
        keys = self.keys or self.key_reader
        return None if keys is None else keys.key

    async def _check_fence(self) -> None:
        if self._writer is not None:
            await self._until_answered(self._writer.check_fence)

    def writer(self, clock: Clock, on_fatal: Callable[[EventStoreError], None]) -> LogWriter:
        """Return a writer that appends to this log."""
        self._writer = LogWriter(
            self._nc,
            self._stream,
            self._subject,
            clock,
            on_fatal,
            self._recovery,
            self._max_msg_size,
            self._refused,
            self.replicas,
        )
        self._writer.first = self.first
        if self.watermark is not None:
            self._writer.keep_mark = self.watermark.keep
        return self._writer

    def connection_lost(self) -> bool:
        """Record that the connection to NATS was lost, and possibly messages with it.

        Return whether this process writes the log.
        """
        if self._writer is None:
            return False
        self._writer.recover("connection to NATS lost", by_server=False)
        return True
