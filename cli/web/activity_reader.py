"""Reads the activity of the last day from the log, in the background, while pages show it.

New records come first, then older ones, block by block, until a day is covered. Pauses are as long
as the work before them. Reading stops when no page requests it; the result is kept.
"""

import asyncio
import time
from collections.abc import Callable, Sequence
from typing import Final

from cli.web.activity import KEPT_MINUTES, MINUTE_MS, Activity, ActivityOfLogs
from cli.web.web_log_client import WebLogClient
from eventstore.display import clock
from eventstore.errors import CorruptLog
from eventstore.format.records import decode_record
from eventstore.reading.log_source import LogSource
from protocol.errors import FoldmqError

_BLOCK: Final = 400
"""Records read backwards at a time."""
_SLICE: Final = 0.02
"""Seconds of work before a pause of the same length."""
_EVERY: Final = 1.0
_TIMEOUT: Final = 30.0
"""Seconds after the last request until reading stops."""
_DAY_MS: Final = KEPT_MINUTES * MINUTE_MS


class ActivityReader:
    """Keeps the activity of the last day for pages; ``now`` returns Unix time in seconds."""

    def __init__(
        self, link: WebLogClient, now: Callable[[], float] = time.time, log: str = ""
    ) -> None:
        """Read the log of that name, or the only one."""
        self._log = log
        self.activity = Activity()
        self.since_ms: int | None = None
        """Time from which the activity is complete; None: nothing was read yet."""
        self.complete = False
        """Whether a day, or the whole log, is covered."""
        self.problem: str | None = None
        """Why reading stopped, as text."""
        self._link = link
        self._now = now
        self._stream: str | None = None
        self._first = self._last = 0
        """The first and the last record read; 0: none."""
        self._asked = 0.0
        self._error: FoldmqError | None = None
        self._task: asyncio.Task[None] | None = None
        self._fresh = asyncio.Event()

    async def wait(self, max_wait: float) -> None:
        """Read on, and return when the newest records are included, or after ``max_wait`` seconds.

        Raises NoLiveBroker, and the errors of reading the log.
        """
        task = self._keep()
        self._fresh.clear()
        waiting = asyncio.create_task(self._fresh.wait())
        await asyncio.wait({task, waiting}, timeout=max_wait, return_when="FIRST_COMPLETED")
        waiting.cancel()
        if task.done() and not task.cancelled():
            task.result()  # an error other than those of reading the log
        if self._error is not None:
            raise self._error

    async def wait_first_time(self, max_wait: float) -> None:
        """Read on; return at once if a part was read before, otherwise as :meth:`wait`.

        Raises CorruptLog if a new record is damaged.
        """
        if self.since_ms is None:
            await self.wait(max_wait)
            return
        error = self._error
        self._keep()
        if isinstance(error, CorruptLog):
            raise error

    def reading(self) -> str | None:
        """Return the progress of reading as text; None: it is complete."""
        if self.complete:
            return None
        since = "" if self.since_ms is None else f", back to {clock(self.since_ms)} so far"
        return f"Reading the log of the last day{since}"

    async def reach(self, time_ms: int, max_wait: float) -> bool:
        """Return whether the activity of a time is complete, after ``max_wait`` seconds at most.

        Raises NoLiveBroker.
        """
        end = time.monotonic() + max_wait
        while (remaining_seconds := end - time.monotonic()) > 0:
            await self.wait(remaining_seconds)
            if self.complete or self.reaches(time_ms):
                break
        return self.reaches(time_ms)

    def reaches(self, time_ms: int) -> bool:
        """Return whether the activity of a time was read."""
        return self.since_ms is not None and self.since_ms <= time_ms

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            # Its error is raised where the result was awaited.
            await asyncio.gather(self._task, return_exceptions=True)

    def _keep(self) -> asyncio.Task[None]:
        """Return the task that reads, started if necessary."""
        self._asked = time.monotonic()
        if self._task is None or self._task.done():
            self._error = None
            self._task = asyncio.create_task(self._run(), name="activity")
        return self._task

    async def _run(self) -> None:
        while time.monotonic() - self._asked < _TIMEOUT:
            begun = time.monotonic()
            try:
                async with self._link.log(self._log) as source:
                    await self._step(source)
            except FoldmqError as error:
                self._error = error
                return
            if self.complete:
                await asyncio.sleep(max(0.0, _EVERY - (time.monotonic() - begun)))

    async def _step(self, source: LogSource) -> None:
        """Read the new records, and one older block."""
        if source.stream != self._stream or source.last < self._last:
            self._restart(source)
        if source.last > self._last:
            first = self._last + 1
            if self.since_ms is None:
                first = max(source.begin, source.last - _BLOCK + 1)
            await self._read(source, first)
        now_ms = round(self._now() * 1000)
        self.activity.forget_before(now_ms - _DAY_MS)
        self._fresh.set()
        covered = self.since_ms is not None and self.since_ms < now_ms - _DAY_MS
        if covered or self._first <= source.begin:
            self.complete = True
        elif not self.complete:
            await self._read_older(source)

    def _restart(self, source: LogSource) -> None:
        self.activity = Activity()
        self.since_ms, self.complete, self.problem = None, False, None
        self._stream, self._first, self._last = source.stream, 0, 0

    async def _read(self, source: LogSource, first: int) -> None:
        """Read from a record to the end of the log."""
        oldest = await self._add(source, first, source.last)
        if self.since_ms is None:
            self._first, self.since_ms = first, oldest
        self._last = source.last

    async def _read_older(self, source: LogSource) -> None:
        last_record = self._first - 1
        first = max(source.begin, last_record - _BLOCK + 1)
        try:
            oldest = await self._add(source, first, last_record)
        except CorruptLog as error:
            # The figures of the time before ``since_ms`` are not shown.
            self._stream = source.stream
            self.problem, self.complete = str(error), True
            return
        self._first = first
        if oldest is not None:
            self.since_ms = oldest

    async def _add(self, source: LogSource, first: int, last: int) -> int | None:
        """Add some records; return the time of the first one."""
        oldest = None
        begun = time.monotonic()
        stream, self._stream = self._stream, None  # if reading fails, records were added in part
        async for sequence, data in source.stored(first, last):
            record = decode_record(sequence, data)
            if oldest is None:
                oldest = record.time_ms
            self.activity.take(record, len(data))
            worked = time.monotonic() - begun
            if worked > _SLICE:
                await asyncio.sleep(worked)
                begun = time.monotonic()
        self._stream = stream
        return oldest


class ReadersOfLogs:
    """Readers of the activity of some logs, as one; it is known only if that of each log is."""

    def __init__(self, readers: Sequence[ActivityReader]) -> None:
        self._readers = readers

    @property
    def activity(self) -> ActivityOfLogs:
        """The activity as far as it was read."""
        return ActivityOfLogs([reader.activity for reader in self._readers])

    @property
    def since_ms(self) -> int | None:
        """Time from which the activity is complete; None: it is not known of some log yet."""
        whole, partial = list[int](), list[int]()
        for reader in self._readers:
            if reader.since_ms is not None:
                # A log that began less than a day ago does not limit the others.
                (whole if _covers_all(reader) else partial).append(reader.since_ms)
            elif not reader.complete:
                return None
        return max(partial) if partial else min(whole, default=None)

    @property
    def problem(self) -> str | None:
        """Why reading stopped, as text."""
        return next(
            (reader.problem for reader in self._readers if reader.problem is not None), None
        )

    def reading(self) -> str | None:
        """Return the progress of reading as text; None: it is complete."""
        behind = [reader for reader in self._readers if not reader.complete]
        behind.sort(key=lambda reader: -1 if reader.since_ms is None else -reader.since_ms)
        return behind[0].reading() if behind else None

    async def wait(self, max_wait: float) -> None:
        """Read on, as ``ActivityReader.wait``."""
        await asyncio.gather(*(reader.wait(max_wait) for reader in self._readers))

    async def wait_first_time(self, max_wait: float) -> None:
        """Read on, as ``ActivityReader.wait_first_time``."""
        await asyncio.gather(*(reader.wait_first_time(max_wait) for reader in self._readers))

    async def reach(self, time_ms: int, max_wait: float) -> bool:
        """Return whether the activity of a time is complete, as ``ActivityReader.reach``."""
        results = await asyncio.gather(
            *(reader.reach(time_ms, max_wait) for reader in self._readers)
        )
        return any(results) and all(
            reached or _covers_all(reader)
            for reached, reader in zip(results, self._readers, strict=True)
        )


class LogActivities:
    """The readers of all logs, created when a page needs them."""

    def __init__(self, link: WebLogClient) -> None:
        self._link = link
        self._readers: dict[str, ActivityReader] = {}

    async def of(self, log: str = "") -> ReadersOfLogs:
        """Return the reader of a log, or without a name of all; raises NoLiveBroker."""
        names = [log] if log else await self._link.logs()
        for name in names:
            if name not in self._readers:
                self._readers[name] = ActivityReader(self._link, log=name)
        return ReadersOfLogs([self._readers[name] for name in names])

    async def close(self) -> None:
        """Stop reading."""
        for reader in self._readers.values():
            await reader.close()


def _covers_all(reader: ActivityReader) -> bool:
    """Return whether a day, or the whole log, was read."""
    return reader.complete and reader.problem is None
