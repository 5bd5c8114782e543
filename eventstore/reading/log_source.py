"""Reads a log: records in order, each checked; a broker may write or cut the log meanwhile."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial

from nats.aio.client import Client

from eventstore.display import clock, name
from eventstore.encryption import StoreKey
from eventstore.errors import CorruptLog, CutMeanwhile, LostLog, NoLog, UnknownLogFormat
from eventstore.format.node_events import LogEndUnproven
from eventstore.format.positions import sequence_of
from eventstore.format.records import ChainChecker, Record, decode_record, mentions
from eventstore.log.log_start import RecordedCut, check_beginning, check_first, find_cut
from eventstore.log.record_reader import read_records, read_some, read_stored
from eventstore.log.watermark import Watermark
from eventstore.nats.discovery import LOG_STREAM_PREFIX
from eventstore.nats.jetstream import read_bounds
from eventstore.reading.log_index import LogIndex
from eventstore.reasons import cut_text

_NEAR = 1000
"""Records examined if the last one is damaged or missing."""


class RecordsRead:
    """A part of a log that was read in order, and the records of salvages in it."""

    __slots__ = ("first", "last", "salvages")

    def __init__(self) -> None:
        self.first, self.last = 1, 0
        """Stream sequences of its first and last record."""
        self.salvages: dict[int, Record] = {}
        """Records that begin with a LogSalvaged, by sequence: also of other parts."""

    def take(self, first: int, record: Record) -> None:
        """Note a record; all from ``first`` on were read before it."""
        sequence, events = record.sequence, record.raw_events
        if events and events[0]["e"] == "LogSalvaged":
            self.salvages[sequence] = record
        if first <= self.last + 1 and sequence >= self.first - 1:
            self.first, self.last = min(first, self.first), max(sequence, self.last)
        elif sequence - first > self.last - self.first:
            self.first, self.last = first, sequence


@dataclass(frozen=True, slots=True)
class LogSource:
    """A log opened for reading; it is never written to."""

    client: Client
    stream: str
    where: str
    """The place, for messages."""
    live: bool
    """Whether a broker may be writing to it."""
    first: int
    last: int
    """Stream sequences of the first and the last record at the time of opening; last 0: none."""
    noted: tuple[int, bytes] | None
    """Sequence and link of a record that the broker noted, outside the log, as stored."""
    cut: RecordedCut | None = None
    """The newest recorded cut of a log that does not begin with record 1."""
    found_index: LogIndex | None = None
    """An index of this log, if there is one."""
    unproven: LogEndUnproven | None = None
    """Why it cannot be shown that the log is whole, if no broker has recorded it yet."""
    key: StoreKey | None = None
    """The key of its index; None: that is not encrypted."""
    content_key: Callable[[int], bytes | None] | None = None
    """Returns a key of sealed contents by its number; None: they are not opened."""
    seen: RecordsRead = field(default_factory=RecordsRead, compare=False, repr=False)
    """What :meth:`records` has read."""

    @property
    def index(self) -> LogIndex:
        """The index of this log; without one, an index of no records."""
        return self.found_index or LogIndex((), self.begin)

    @property
    def not_indexed(self) -> int:
        """Number of records behind the index."""
        return self.last - self.index.last

    def indexed(self, index: LogIndex | None) -> LogSource:
        """Return the log to be read with an index of it, or without."""
        return replace(self, found_index=index)

    @property
    def without_mark(self) -> bool:
        """Whether nothing outside the log says with which record it must end."""
        return bool(self.last) and self.noted is None and self.unproven is None

    @property
    def begin(self) -> int:
        """Stream sequence at which the log begins, 1 for an empty one."""
        return max(1, self.first)

    async def records(
        self, first: int, last: int, *, whole_turns: bool = False
    ) -> AsyncIterator[Record]:
        """Yield the records between two sequences in order, each checked against the one before.

        ``whole_turns``: as for ``decode_record``.

        Raises CorruptLog for the first record that is damaged, missing or out of place, and
        CutMeanwhile when the broker cut the log beyond the record being read.
        """
        checker: ChainChecker | None = ChainChecker() if first == 1 else None
        records = read_records(self.client, self.stream, first, last, whole_turns=whole_turns)
        async for record in records:
            expected = first if checker is None else checker.sequence + 1
            if record.sequence != expected:
                await self.check_still_there(expected)
            if checker is None:
                if record.sequence != first:
                    raise CorruptLog(first, "is missing or cannot be read")
                check_first(record, self.cut)
                checker = ChainChecker.before(record)
            checker.check(record)
            if self.noted is not None and self.noted[0] == record.sequence:
                check_noted(self.noted, record)
            self.seen.take(first, record)
            yield self._opened(record)
        seen = checker.sequence if checker is not None else first - 1
        if seen < last:
            await self.check_still_there(seen + 1)
            raise CorruptLog(seen + 1, "is missing or cannot be read")

    def stored(self, first: int, last: int) -> AsyncIterator[tuple[int, bytes]]:
        """Yield (sequence, bytes) of the messages between two sequences, unchecked."""
        return read_stored(self.client, self.stream, first, last)

    async def some(self, sequences: Iterable[int]) -> list[Record]:
        """Return the records with these sequences, and possibly some between them.

        Raises CorruptLog when one is missing or damaged, CutMeanwhile as :meth:`records`.
        """
        try:
            records = await read_some(self.client, self.stream, sequences)
        except CorruptLog as error:
            await self.check_still_there(error.sequence)
            raise
        return [self._opened(record) for record in records]

    def _opened(self, record: Record) -> Record:
        if self.content_key is not None:
            record.open(self.content_key)
        return record

    async def records_with(
        self, words: Sequence[bytes], progressed: Callable[[int], None]
    ) -> AsyncIterator[Record]:
        """Yield the records up to the newest cut that contain one of some byte strings.

        These records repeat the messages from before the cut that are still needed. ``progressed``
        is called with each sequence that was read. Raises CorruptLog for a damaged record.
        """
        last = self.cut_at
        async for sequence, data in self.stored(self.begin, last):
            if mentions(data, words):
                yield self._opened(decode_record(sequence, data))
            progressed(sequence)

    @property
    def cut_at(self) -> int:
        """Sequence of the record with the newest cut; without one, the first sequence minus 1."""
        return sequence_of(self.cut.at) if self.cut is not None else self.begin - 1

    async def bounds(self) -> tuple[int, int]:
        """Return the current sequences of the first and the last record."""
        return await read_bounds(self.client, self.stream)

    async def node(self) -> str:
        """Return the node that owns the log. Raises CorruptLog or CutMeanwhile."""
        if not self.last:
            return self.stream.removeprefix(LOG_STREAM_PREFIX)
        return (await self.some([self.last]))[-1].node

    async def check_still_there(self, sequence: int) -> None:
        """Raise CutMeanwhile when the broker has cut a record off since the log was opened."""
        if self.live:
            first, _ = await self.bounds()
            if first > sequence >= self.first:
                raise CutMeanwhile(first)

    def beginning(self) -> str:
        """Return a sentence about the beginning of a cut log: record, time and reason."""
        sentence = f"the log begins with record {self.first}"
        if self.cut is None:
            return sentence
        event = self.cut.event
        if event.first == self.first:
            sentence += f" of {clock(event.begins_ms)}"
        why = cut_text(event.reason)
        return f"{sentence}: earlier records were cut off on {clock(self.cut.time_ms)} ({why})"

    def require_whole(self) -> None:
        """Raise CorruptLog unless the log begins and ends where it may.

        It may begin with record 1, or where its newest recorded cut is.
        """
        if self.last:
            check_beginning(self.first, self.cut)
        if self.noted is not None and self.noted[0] > self.last and self.unproven is None:
            raise CorruptLog(
                self.last + 1,
                f"is missing: the log had reached record {self.noted[0]} and ends before it",
            )

    async def require_noted(self) -> None:
        """Raise CorruptLog when the log contains another record than the one noted outside it.

        For readers that do not use :meth:`records`, which checks it. An unreadable record is not
        reported here.
        """
        if self.noted is not None and self.begin <= self.noted[0] <= self.last:
            sequence = self.noted[0]
            async for number, data in self.stored(sequence, sequence):
                try:
                    record = decode_record(number, data)
                except CorruptLog:
                    return
                check_noted(self.noted, record)


def check_noted(noted: tuple[int, bytes], record: Record) -> None:
    """Raise CorruptLog when the record differs from the one noted under its sequence."""
    if noted[0] == record.sequence and noted[1] != record.link:
        raise CorruptLog(record.sequence, "is not the one that was acknowledged")


async def open_log(
    client: Client, stream: str, where: str, *, live: bool = True, mark: Watermark | None = None
) -> LogSource:
    """Return the log in a stream of a NATS server.

    ``where`` names the place in messages. ``live`` says that a broker may be writing to the log.
    ``mark`` is the broker's note outside the log.

    Raises NoLog, LostLog, CorruptLog or NatsUnavailable.
    """
    # the mark first: a running broker advances both
    noted = mark.read() if mark is not None else None
    try:
        first, last = await read_bounds(client, stream)
    except LostLog:
        if mark is not None:
            raise LostLog(stream, stored=True) from None
        raise NoLog(f"there is no log {name(stream)} on {where}") from None
    if first > last > 0:
        raise CorruptLog(1, f"is gone with all others: stream {stream} was emptied")
    cut: RecordedCut | None = None
    if first > 1:
        cut = await find_cut(partial(read_stored, client, stream), first, last)
    unproven = None
    if mark is not None and last and not (live and noted is None):
        # also of a running broker: it may be starting, and has not recorded it yet
        unproven = mark.unproven_end(last, await _time_at(client, stream, last))
    return LogSource(client, stream, where, live, first, last, noted, cut, unproven=unproven)


async def _time_at(client: Client, stream: str, sequence: int) -> int:
    """Return the time of the last readable record up to a sequence; 0 if many are damaged."""
    for first in (sequence, max(1, sequence - _NEAR)):
        time_ms = 0
        async for number, data in read_stored(client, stream, first, sequence):
            with suppress(CorruptLog, UnknownLogFormat):
                time_ms = decode_record(number, data).time_ms
        if time_ms:
            return time_ms
    return 0
