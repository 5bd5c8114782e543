"""The log as a stream: offsets are the sequences up to which each log was read.

An offset is the end of a whole turn, so that no batch ends within one. The range between two
offsets never changes: with a checkpoint every row is processed exactly once, even if the query is
killed.
"""

# ruff: noqa: N802 - the names of the methods are Spark's

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from eventstore.display import escaped
from eventstore.errors import CorruptLog, CutOff, NoLog
from eventstore.format.records import decode_record
from eventstore.nats.connection import disconnect
from spark.runtime.marked_errors import BadOption, mark_errors
from spark.tables.discovery import find_in_nats, find_logs
from spark.tables.nats_access import NatsAccess
from spark.tables.nats_log import NatsLog
from spark.tables.options import SourceOptions
from spark.tables.partitions import LogPartition, read_partition
from spark.tables.planning import check_named, group_ranges, split_ranges
from spark.tables.point_options import EARLIEST, LATEST
from spark.tables.record_frames import frame_of
from spark.tables.stored_log import RecordRange, StoredLog, open_records

if TYPE_CHECKING:
    import pyarrow as pa
    from nats.aio.client import Client


class PollingConnection:
    """Looks up logs; connects at first use and stays connected until closed. Not pickled."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._client: Client | None = None

    def find(self) -> list[StoredLog]:
        """Return the current logs; raises as ``discovery.find_logs``."""
        return find_logs(self._options, self._run)

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


_MORE: Final = 8
"""Factor by which the number of examined records grows if no turn ended among the last ones."""


def whole_end(stored: StoredLog, above: int, last: int) -> int:
    """Return the last record up to a sequence at which a turn ends; ``above`` if there is none."""
    count = 1
    while last > above:
        first = max(above + 1, last - count + 1)
        end = above
        for sequence, data in stored.read(first, last):
            if _ends(sequence, data):
                end = sequence
        if end > above:
            return end
        last = first - 1
        count *= _MORE
    return above


def _ends(sequence: int, data: bytes) -> bool:
    """Return whether a turn ends with a record; a damaged one counts, as a batch must report it."""
    try:
        return frame_of(sequence, data).last
    except CorruptLog:
        return True


def within(stored: StoredLog, above: int, end: int, limits: Mapping[str, int]) -> int:
    """Return the end of a batch that begins behind a sequence, at most ``end``.

    ``limits`` are ``records``, ``bytes`` (by their average) and ``events``; a turn that exceeds
    them is taken alone.
    """
    most = end
    if "records" in limits:
        most = min(most, above + limits["records"])
    if "bytes" in limits:
        average = max(1, stored.size // (stored.last - stored.first + 1))
        most = min(most, above + max(1, limits["bytes"] // average))
    if "events" in limits:
        most = min(most, _of_events(stored, above, most, limits["events"]))
    batch_end = end if most >= end else whole_end(stored, above, most)
    return batch_end if batch_end > above else _next_end(stored, most, end)


def _of_events(stored: StoredLog, above: int, last: int, limit: int) -> int:
    """Return the last record, at least the first one, up to which the limit of events holds."""
    seen = 0
    with open_records(stored, above + 1, last) as records:
        for sequence, data in records:
            try:
                seen += len(decode_record(sequence, data).raw_events)
            except CorruptLog:
                seen += 1
            if seen > limit:
                return max(above + 1, sequence - 1)
    return last


def _next_end(stored: StoredLog, above: int, end: int) -> int:
    """Return the first record behind a sequence at which a turn ends."""
    with open_records(stored, above + 1, end) as records:
        for sequence, data in records:
            if _ends(sequence, data):
                return sequence
    return end


class LogStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads logs as they grow."""

    def __init__(self, options: SourceOptions) -> None:
        if options.until.given or options.start.given:
            raise BadOption("a stream has no until and no from: it begins at startingOffsets")
        if options.ending.given:
            raise BadOption("a stream has no endingOffsets: it reads the log as it grows")
        self._options = options
        self._connection = PollingConnection(options)
        self._target: dict[str, int] | None = None

    def initialOffset(self) -> dict[str, int]:
        """Return the start of the stream."""
        with mark_errors():
            logs = self._connection.find()
            starting = self._options.starting
            check_named(starting.name, starting.each, [stored.stream for stored in logs])
            return {stored.stream: self._begin(stored) for stored in logs}

    def getDefaultReadLimit(self) -> ReadLimit:
        """Return a limit that stands for those of the options, which latestOffset applies."""
        limits = self._options.limits
        if "bytes" in limits:
            return ReadMaxBytes(limits["bytes"])
        if limits:
            return ReadMaxRows(min(limits.values()))
        return ReadAllAvailable()

    def prepareForTriggerAvailableNow(self) -> None:
        """Remember the current ends of the logs: the query reads up to them."""
        with mark_errors():
            logs = self._connection.find()
            self._target = {log.stream: whole_end(log, 0, log.last) for log in logs}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the end of the next batch: whole turns, within the limits.

        A new log is read from the batch after this one on, and from its beginning:
        ``startingOffsets`` concerns the logs that existed when the stream began.
        """
        with mark_errors():
            stored_logs = self._connection.find()
            logs = self._logs(stored_logs, start)
            end = dict(start)
            ends = {name: self._end(stored, start[name]) for name, stored in logs.items()}
            behind = [name for name, last in ends.items() if last > start[name]]
            # A log that ends before the stream is another one of that name.
            end.update({name: last for name, last in ends.items() if last < start[name]})
            limits = {} if isinstance(limit, ReadAllAvailable) else self._options.limits
            share = {what: max(1, most // len(behind)) for what, most in limits.items() if behind}
            for name in behind:
                begin = _reached(logs[name], start[name])
                end[name] = within(logs[name], begin, ends[name], share)
            for stored in stored_logs:
                if stored.stream not in start and self._reaches(stored):
                    end[stored.stream] = stored.first - 1
            return end

    def reportLatestOffset(self) -> dict[str, int]:
        """Return the ends of the logs, for the progress of the query."""
        with mark_errors():
            return {stored.stream: stored.last for stored in self._connection.find()}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        """Return the ranges between two offsets."""
        with mark_errors():
            logs = self._logs(self._connection.find(), start)
            ranges = [
                part
                for name, last in end.items()
                if name in logs and (part := _range(logs[name], start[name], last)) is not None
            ]
            count = self._options.partitions
            return list(map(LogPartition, group_ranges(split_ranges(ranges, count), count)))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a range."""
        return read_partition(self._options, self._options.pushed, partition)

    def commit(self, end: dict[str, int]) -> None:
        """Do nothing: only the broker cuts the log."""

    def stop(self) -> None:
        """Disconnect."""
        self._connection.close()

    def _begin(self, stored: StoredLog) -> int:
        """Return the last sequence of a log that is not read; raises BadOption or CutOff."""
        offset = self._options.starting.of(stored.stream)
        if offset is None or offset == EARLIEST:
            return stored.first - 1
        if offset == LATEST:
            return whole_end(stored, stored.first - 1, stored.last)
        if not self._lossy:
            _check(stored, offset - 1)
        return min(max(offset, stored.first) - 1, stored.last)

    def _reaches(self, stored: StoredLog) -> bool:
        """Return whether the query continues with a log: not if the log appeared after its end."""
        return self._target is None or stored.stream in self._target

    @property
    def _lossy(self) -> bool:
        """Whether the stream continues although records were cut off before it has read them."""
        return not self._options.fail_on_data_loss

    def _logs(self, stored: Sequence[StoredLog], start: dict[str, int]) -> dict[str, StoredLog]:
        """Return the logs of an offset; raises NoLog or CutOff if records behind it are gone."""
        by_stream = {log.stream: log for log in stored}
        if self._lossy:
            return {name: by_stream[name] for name in start if name in by_stream}
        for name, sequence in start.items():
            if name not in by_stream:
                raise NoLog(
                    f"log {escaped(name)} is not there any more; the stream has read it up to "
                    f"record {sequence}; failOnDataLoss=false continues without it"
                )
            _check(by_stream[name], sequence)
        return {name: by_stream[name] for name in start}

    def _end(self, stored: StoredLog, start: int) -> int:
        start = _reached(stored, start)
        last = stored.last
        if self._target is not None:
            last = min(last, self._target.get(stored.stream, start))
        return whole_end(stored, start, last)


def _reached(stored: StoredLog, sequence: int) -> int:
    """Return the last record that is read or removed, for a stream that has reached a sequence.

    A log that ends before it is another one of that name: nothing of it was read.
    """
    return stored.first - 1 if sequence > stored.last else max(sequence, stored.first - 1)


def _range(stored: StoredLog, start: int, last: int) -> RecordRange | None:
    """Return the records between two offsets; from the beginning if the end is before the start."""
    begin = stored.first - 1 if last < start else max(start, stored.first - 1)
    return RecordRange(stored, begin + 1, last, last) if last > begin else None


def _check(stored: StoredLog, sequence: int) -> None:
    """Raise CutOff or BadOption unless a log continues behind a sequence."""
    if stored.first > sequence + 1:
        raise CutOff(
            f"log {stored.stream} was cut before the stream has read it: it has come to record "
            f"{sequence}, and the log begins with record {stored.first}; read what is missing from "
            "an archive (option archive), begin anew with another checkpoint, or continue without "
            "it (failOnDataLoss=false)"
        )
    if sequence > stored.last:
        raise BadOption(
            f"log {stored.stream} ends with record {stored.last}, before record {sequence}, up to "
            "which the stream has read it: is it the same log?"
        )
