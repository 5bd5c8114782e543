"""The events of several logs in the order of time.

Only the next event of each log is in memory. Within a log its order is kept, whatever its clock
says; events of the same millisecond are in the order of the logs.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from eventstore.errors import CutMeanwhile, naming_log
from eventstore.format.turn_parts import TurnAssembler
from eventstore.reading.log_points import LogPoint, last_between, time_of
from eventstore.reading.progress import Progress, silent
from projections.past.event_reader import EventEntry, EventFilter, EventReader

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

_Item = TypeVar("_Item")


class LogEntry(NamedTuple):
    """An event of one of the logs."""

    log: str
    entry: EventEntry


async def merged_entries(
    streams: Sequence[tuple[str, AsyncGenerator[EventEntry, None]]],
) -> AsyncGenerator[LogEntry, None]:
    """Yield the events of several logs by time; each stream is in the order of its log.

    Closes the streams at the end.
    """
    async with contextlib.AsyncExitStack() as stack:
        heads: list[tuple[int, int, EventEntry]] = []
        for number, (_, stream) in enumerate(streams):
            await stack.enter_async_context(contextlib.aclosing(stream))
            entry = await anext(stream, None)
            if entry is not None:
                heads.append((entry.time_ms, number, entry))
        heapify(heads)  # no two heads have the same number, so entries are not compared
        while heads:
            _, number, entry = heads[0]
            log, stream = streams[number]
            yield LogEntry(log, entry)
            following = await anext(stream, None)
            if following is None:
                heappop(heads)
            else:
                heapreplace(heads, (following.time_ms, number, following))


async def _streamed(items: Sequence[_Item]) -> AsyncGenerator[_Item, None]:
    for item in items:
        yield item


class MergedReader:
    """Reads the selected events of several logs, or of one, by time."""

    def __init__(
        self,
        logs: Mapping[str, LogSource],
        selected: Callable[[], EventFilter],
        progress: Progress = silent,
    ) -> None:
        """Take the logs; ``selected`` makes the filter of one. A single log may have no name."""
        self.readers = {
            log: EventReader(source, selected(), progress) for log, source in logs.items()
        }
        self._turns = {log: TurnAssembler(anywhere=True) for log in logs}
        self._done = {log: source.last for log, source in logs.items()}
        """The last record of each log whose events were yielded."""
        self._seen = dict(self._done)
        """The last record of each log at the last call of :meth:`new_entries`."""

    async def entries(
        self, starts: Mapping[str, LogPoint], ends: Mapping[str, LogPoint], *, ended: bool
    ) -> AsyncGenerator[LogEntry, None]:
        """Yield the events between two points of each log.

        ``ended``: nothing follows the ends, so that incomplete turns are void. Raises CorruptLog,
        UnreadableEvent or CutMeanwhile.
        """
        streams = [
            (log, self._read(log, starts[log], ends[log], ended=ended)) for log in self.readers
        ]
        async with contextlib.aclosing(merged_entries(streams)) as merged:
            async for entry in merged:
                yield entry

    async def latest(
        self,
        count: int,
        ends: Mapping[str, LogPoint],
        *,
        ended: bool,
        begins: Mapping[str, int] | None = None,
    ) -> list[LogEntry]:
        """Return the last events up to a point of each log, from a record on in ``begins``.

        Otherwise as :meth:`entries`.
        """
        begins = begins or {}
        streams = []
        for log, reader in self.readers.items():
            with naming_log(log):
                turns = self._turns[log]
                entries = await reader.latest(
                    count, ends[log], turns, ended=ended, begin=begins.get(log, 0)
                )
            streams.append((log, _streamed(entries)))
        return [entry async for entry in merged_entries(streams)][-count:]

    async def new_entries(self, missed: Callable[[str, int], object]) -> AsyncIterator[LogEntry]:
        """Yield the events that were added since the logs were opened, or since the last call.

        Those of several logs are in the order of time if the logs are written without delay: what
        is later than all that was there at the last call waits for the next one. ``missed`` is
        called with a log, and the first record that is left in it, if records were deleted before
        they could be read. Raises CorruptLog, UnreadableEvent or NatsUnavailable.
        """
        starts: dict[str, LogPoint] = {}
        ends: dict[str, LogPoint] = {}
        lasts: dict[str, int] = {}
        for log, reader in self.readers.items():
            with naming_log(log):
                first, lasts[log] = await reader.source.bounds()
            if first > self._done[log] + 1:
                missed(log, first)
                self._done[log], self._turns[log] = first - 1, TurnAssembler(anywhere=True)
                self._seen[log] = max(self._seen[log], first - 1)
        with contextlib.suppress(CutMeanwhile):  # the next call finds out where
            for log, until in (await self._due(lasts)).items():
                if until > self._done[log]:
                    starts[log], ends[log] = LogPoint(self._done[log] + 1, 0), LogPoint(until)
        self._seen = lasts
        streams = [(log, self._read_new(log, start, ends[log])) for log, start in starts.items()]
        async for entry in merged_entries(streams):
            yield entry

    async def _due(self, lasts: Mapping[str, int]) -> dict[str, int]:
        """Return the record up to which each log is read now."""
        if len(self.readers) == 1:
            return dict(lasts)
        until = 0
        for log, reader in self.readers.items():
            if self._seen[log] > self._done[log]:
                with naming_log(log):
                    until = max(until, await time_of(reader.source, self._seen[log]))
        due = {}
        for log, reader in self.readers.items():
            with naming_log(log):
                due[log] = await last_between(reader.source, self._seen[log], lasts[log], until)
        return due

    async def _read(
        self, log: str, start: LogPoint, end: LogPoint, *, ended: bool, follows: bool = False
    ) -> AsyncGenerator[EventEntry, None]:
        with naming_log(log):
            turns = self._turns[log]
            entries = self.readers[log].entries(start, end, turns, ended=ended, follows=follows)
            async with contextlib.aclosing(entries):
                async for entry in entries:
                    yield entry

    async def _read_new(
        self, log: str, start: LogPoint, end: LogPoint
    ) -> AsyncGenerator[EventEntry, None]:
        """Yield new events, and note that they were; ends early if the log was cut meanwhile."""
        with contextlib.suppress(CutMeanwhile):
            async for entry in self._read(log, start, end, ended=False, follows=True):
                yield entry
            self._done[log] = end.sequence
