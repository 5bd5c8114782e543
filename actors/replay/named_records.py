"""The records of the log that its index names for a filter.

Another process writes the index (``foldmq log index``); this only reads its files, and looks for
new ones now and then. An index that is damaged, or of another log, is not used: then all records
are read.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import structlog

from actors.kernel.clock import LogClock
from eventstore.encryption import StoreKey
from eventstore.errors import CorruptLog
from eventstore.format.records import Record
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.log_index import LogIndex
from eventstore.reading.segment import BadIndex
from projections.past.topic_records import fixed_prefix
from protocol.mqtt.topics import matches

if TYPE_CHECKING:
    from eventstore.log.jetstream_log import EventLog

_log = structlog.get_logger("foldmq")

_LOOK_SECONDS: Final = 5.0
_PAUSE: Final = 0.001
"""Seconds of a search after which others run."""


class NamedRecords(NamedTuple):
    """The records in a part of the log in which messages may match a filter."""

    sequences: Sequence[int]
    first: int
    through: int
    """The first and the last record of that part."""
    rejected: int
    """How often an index had been rejected when they were looked up."""

    def between(self, first: int, end: int, most: int) -> Sequence[int]:
        """Return those between two, both included, at most so many."""
        begin = bisect_left(self.sequences, first)
        return self.sequences[begin : min(begin + most, bisect_right(self.sequences, end))]


class RecordIndex:
    """The index of the log of a broker, if there is one."""

    def __init__(self, clock: LogClock, log: EventLog) -> None:
        self._clock = clock
        self._log = log
        self._path: Path | None = None
        self._stream = ""
        self._key: StoreKey | None = None
        self._index: LogIndex | None = None
        self._names: list[str] = []
        """The files that were opened, or found unusable."""
        self._looked_at = -inf
        self._rejected = 0

    def use(self, path: Path, stream: str, key: StoreKey | None = None) -> None:
        """Use the index of the log in a stream, in a directory; with ``key``, an encrypted one."""
        self._path, self._stream, self._key = path, stream, key

    def close(self) -> None:
        """Close the files once nobody reads them."""
        self._index, self._names, self._looked_at = None, [], -inf

    def covers(self, named: NamedRecords, sequence: int) -> bool:
        """Return whether records that were looked up still say where to go on from one."""
        return named.rejected == self._rejected and named.first <= sequence <= named.through

    def check(self, record: Record) -> None:
        """Raise BadIndex when a record differs from the indexed one."""
        if self._index is not None:
            self._index.check(record)

    def reject(self, error: BadIndex) -> None:
        """Use no index until there are other files."""
        _log.warning("the index is not used for replays", reason=str(error))
        self._index = None
        self._rejected += 1

    async def named(
        self, topic_filter: str, first: int, limit: int, begin: int
    ) -> NamedRecords | None:
        """Return the records from ``first`` on, in which a message may match a filter.

        The log begins with record ``begin``, and may be read up to ``limit``. They are those of a
        part of the log; None: the index does not show them. Raises BadIndex, and as
        :meth:`EventLog.read_some`.
        """
        await self._look(begin, limit)
        index = self._index
        if index is None or not index.first <= first <= index.last:
            return None
        through = min(limit, index.segment_end(first))
        steps = index.effects_in_steps(
            fixed_prefix(topic_filter),
            lambda topic: matches(topic_filter, topic),
            first,
            through,
        )
        begun = self._clock.stopwatch()
        while True:
            try:
                next(steps)
            except StopIteration as end:
                sequences = end.value
                break
            if self._clock.stopwatch() - begun > _PAUSE:
                await asyncio.sleep(0)
                begun = self._clock.stopwatch()
        if sequences is None:
            return None
        salvages = [at for at in index.rare("LogSalvaged") if first <= at <= through]
        named = sorted({*sequences, *salvages}) if salvages else sequences
        return NamedRecords(named, first, through, self._rejected)

    async def _look(self, begin: int, end: int) -> None:
        """Open the files if there are other ones, and they are an index of this log."""
        now = self._clock.monotonic()
        if self._path is None or now < self._looked_at + _LOOK_SECONDS:
            return
        self._looked_at = now
        try:
            names = sorted(file.name for file in self._path.glob("*.index"))
        except OSError:
            return
        if names == self._names:
            return
        files = IndexFiles(self._path, self._key)
        try:
            files.open(self._stream)
        except OSError:  # they were merged just now
            return
        except BadIndex as error:
            self._names = names
            self.reject(error)
            return
        head = files.head
        if head is None or head.last > end:
            return
        # The chain of links makes this record identify all records before it.
        try:
            (record,) = await self._log.read_some([head.last]) if head.last >= begin else (None,)
        except CorruptLog:
            record = None
        self._names = names
        if record is None or record.link.hex() != head.link:
            self._index = None
            return
        self._index = LogIndex(files.segments, begin)
