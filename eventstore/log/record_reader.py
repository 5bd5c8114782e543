"""Reads records from a stream, in order, with direct gets, which leave no consumer behind.

Any replica of a stream answers a direct get, even one that lags behind. So a message that one
replica lacks is not necessarily missing: the stream's leader has the authoritative answer.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncIterator, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import nats.errors
import orjson

from eventstore.errors import CorruptLog, LogUnavailable
from eventstore.format.records import GENESIS, NO_JUMPS, ClockJumps, Record, decode_record
from eventstore.nats.jetstream import (
    END_OF_BATCH,
    NOT_FOUND,
    Arrivals,
    direct_get_subject,
    get_message,
    read_bounds,
    read_next,
    request_stream,
    sending,
    status_of,
)

if TYPE_CHECKING:
    from nats.aio.client import Client
    from nats.aio.msg import Msg
    from nats.aio.subscription import Subscription

_BATCH_MESSAGES = 512
_BATCH_BYTES = 16 * 1024 * 1024
_RANGES_AT_ONCE = 16
_MANY = 16
_SPARSE = 8
"""Largest ratio of all records to wanted ones at which all are read with one request."""


@dataclass(frozen=True, slots=True)
class LogTail:
    """The end of a log."""

    sequence: int
    """Stream sequence of the last record, 0 when there is none."""
    link: bytes
    """Link of that record."""
    steady_ms: int = 0
    """Its time without the jumps of the clock, Unix time in milliseconds."""
    jumps: ClockJumps = NO_JUMPS
    """The jumps of the clock up to it."""

    @classmethod
    def of(cls, record: Record) -> LogTail:
        """Return the end of a log that ends with a record."""
        return cls(record.sequence, record.link, record.steady_ms, record.jumps)


async def read_tail(
    nc: Client,
    stream: str,
    subject: str,
    timeout: float | None = None,  # noqa: ASYNC109 - of each of two requests
) -> LogTail:
    """Return the end of the log as the stream's leader sees it.

    Raises LogUnavailable when JetStream does not answer in ``timeout`` seconds (None: 10), LostLog
    when there is no such stream, CorruptLog when it was emptied or the last record is damaged.
    """
    body = {"last_by_subj": subject}
    while True:
        answer = await request_stream(nc, stream, f"STREAM.MSG.GET.{stream}", body, timeout)
        if "error" not in answer:
            sequence = answer["message"]["seq"]
        else:  # there is no last record, or JetStream cannot read it
            first, sequence = await read_bounds(nc, stream, timeout)
            if not sequence:
                return LogTail(0, GENESIS)
            if first > sequence:
                raise CorruptLog(1, f"is gone with all others: stream {stream} was emptied")
        try:
            data = await get_message(nc, stream, sequence, timeout)
        except CorruptLog:
            first, last = await read_bounds(nc, stream, timeout)
            if sequence < first <= last:
                continue  # another node has written more meanwhile, and cut the log after it
            raise
        return LogTail.of(decode_record(sequence, data))


class _BatchReader:
    """Collects the replies to batched direct gets on one inbox at a time.

    When the connection was lost and re-established, replies are missing, and later ones of the same
    request may still arrive: the rest is requested again, with another inbox.
    """

    def __init__(self, nc: Client, stream: str, seconds: float | None) -> None:
        self._nc = nc
        self._stream = stream
        self._seconds = seconds
        self._arrivals: Arrivals[Msg]
        self._messages: deque[Msg] = deque()
        self._inbox = ""
        self._reconnects = 0
        """Number of reconnections of the client when the inbox was created."""
        self.stored = ""
        """Time at which the message that was yielded last was stored, if known."""

    async def _next(self) -> Msg:
        if not self._messages:
            self._messages.extend(await self._arrivals.next())
        return self._messages.popleft()

    async def _subscribe(self) -> Subscription:
        """Subscribe to another inbox."""
        arrivals: Arrivals[Msg] = Arrivals(self._stream, self._seconds)
        self._arrivals = arrivals
        self._messages.clear()
        self._inbox = self._nc.new_inbox()
        self._reconnects = self._nc.stats["reconnects"]

        async def keep(message: Msg) -> None:
            arrivals.add(message)

        with sending(self._stream):
            return await self._nc.subscribe(
                self._inbox, cb=keep, pending_msgs_limit=0, pending_bytes_limit=0
            )

    @property
    def _interrupted(self) -> bool:
        """True if replies may have been lost since the inbox was created."""
        return self._nc.stats["reconnects"] != self._reconnects

    async def read(self, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (sequence, data) of the messages between two sequences, both included."""
        subject = direct_get_subject(self._nc, self._stream)
        subscription = await self._subscribe()
        try:
            position = first
            while position <= last:
                if self._interrupted:
                    await _unsubscribe(subscription)
                    subscription = await self._subscribe()
                count = min(_BATCH_MESSAGES, last - position + 1)
                body = orjson.dumps(
                    {
                        "seq": position,
                        "batch": count,
                        "max_bytes": _BATCH_BYTES,
                        "next_by_subj": ">",
                    }
                )
                with sending(self._stream):
                    await self._nc.publish(subject, body, reply=self._inbox)
                before = position
                message = await self._next()
                while not self._interrupted and (status := status_of(message)) is None:
                    headers = message.headers or {}
                    position = int(headers["Nats-Sequence"]) + 1
                    self.stored = headers.get("Nats-Time-Stamp", "")
                    if position - 1 > last:
                        return
                    yield position - 1, message.data
                    message = await self._next()
                if self._interrupted:
                    continue
                if status not in (END_OF_BATCH, NOT_FOUND):
                    raise LogUnavailable(f"stream {self._stream} answers {status}")
                if position == before:
                    # The stream has no more messages, or the answering replica lags behind.
                    following = await read_next(self._nc, self._stream, position, self._seconds)
                    if following is None or following[0] > last:
                        return
                    self.stored = ""
                    yield following
                    position = following[0] + 1
        finally:
            await _unsubscribe(subscription)


async def _unsubscribe(subscription: Subscription) -> None:
    with contextlib.suppress(nats.errors.Error):
        await subscription.unsubscribe()


def read_stored(
    nc: Client, stream: str, first: int, last: int, seconds: float | None = None
) -> AsyncIterator[tuple[int, bytes]]:
    """Yield (sequence, bytes) of the messages between two sequences, unchecked.

    Raises LogUnavailable when JetStream does not answer in ``seconds`` (None: 10).
    """
    return _BatchReader(nc, stream, seconds).read(first, last)


async def read_records(
    nc: Client,
    stream: str,
    first: int,
    last: int,
    seconds: float | None = None,
    *,
    whole_turns: bool = False,
) -> AsyncIterator[Record]:
    """Yield the records between two stream sequences (both included), in order.

    ``whole_turns``: as for :func:`decode_record`.

    Raises CorruptLog for a record whose checksum is wrong, LogUnavailable when JetStream does not
    answer. The caller checks the chain (``records.ChainChecker``).
    """
    reader = _BatchReader(nc, stream, seconds)
    async for sequence, data in reader.read(first, last):
        yield decode_record(sequence, data, whole_turns=whole_turns, stored_at=reader.stored)


def _ranges(sequences: Iterable[int]) -> list[tuple[int, int]]:
    """Return the sequences as ranges; close ones are joined and read with one request."""
    ranges: list[tuple[int, int]] = []
    ordered = sorted(set(sequences))
    # A request for each costs about as much as reading a few unwanted records.
    if len(ordered) >= _MANY and ordered[-1] - ordered[0] <= _SPARSE * len(ordered):
        return [(ordered[0], ordered[-1])]
    for sequence in ordered:
        if ranges and sequence - ranges[-1][1] <= 4:
            ranges[-1] = (ranges[-1][0], sequence)
        else:
            ranges.append((sequence, sequence))
    return ranges


async def _read_range(
    nc: Client, stream: str, span: tuple[int, int], requested: set[int], seconds: float | None
) -> list[Record]:
    first, last = span
    if first == last:
        return [decode_record(first, await get_message(nc, stream, first, seconds))]
    stored = read_stored(nc, stream, first, last, seconds)
    return [decode_record(number, data) async for number, data in stored if number in requested]


async def read_some(
    nc: Client, stream: str, sequences: Iterable[int], seconds: float | None = None
) -> list[Record]:
    """Return the records with these stream sequences.

    Raises CorruptLog when one of them is missing or damaged, LogUnavailable as above.
    """
    records: dict[int, Record] = {}
    requested = set(sequences)
    ranges = _ranges(requested)
    for start in range(0, len(ranges), _RANGES_AT_ONCE):
        spans = ranges[start : start + _RANGES_AT_ONCE]
        parts = await asyncio.gather(
            *(_read_range(nc, stream, span, requested, seconds) for span in spans)
        )
        records.update((record.sequence, record) for part in parts for record in part)
    for sequence in sorted(requested - records.keys()):
        raise CorruptLog(sequence, f"is not in stream {stream} or cannot be read there")
    return list(records.values())
