"""Finds the logs named by options: in NATS, in an archive, or in both as one."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eventstore.display import escaped
from eventstore.errors import CorruptLog, NoLog
from eventstore.format.records import link_of
from eventstore.nats.connection import disconnect
from eventstore.nats.discovery import list_logs
from protocol.errors import FoldmqError
from spark.runtime.marked_errors import BadOption, OtherLog
from spark.runtime.sync_calls import run_sync
from spark.tables.nats_access import NatsAccess
from spark.tables.nats_log import NatsLog, look_up
from spark.tables.options import SourceOptions
from spark.tables.stored_log import StoredLog

if TYPE_CHECKING:
    from nats.aio.client import Client

    from spark.tables.archive_log import ArchivedLog

_LISTED: Final = 10
_STEP_BYTES: Final = 4 << 20


def find_logs(
    options: SourceOptions, ask: Callable[[NatsAccess], list[NatsLog]] | None = None
) -> list[StoredLog]:
    """Return the current logs, each once, in the order of their names.

    ``ask`` finds those in NATS; None: over a connection for this call. Raises NoLog, BadOption if
    the choice is ambiguous, NatsUnavailable, and the errors of reading the archive.
    """
    old = find_in_archive(options)
    access = options.access
    if access is None:
        return join_with_archive(options, [], old)
    stored = run_sync(_ask(access, options.streams)) if ask is None else ask(access)
    return join_with_archive(options, stored, old)


async def _ask(access: NatsAccess, streams: Sequence[str]) -> list[NatsLog]:
    client = await access.open()
    try:
        return await find_in_nats(client, access, streams)
    finally:
        await disconnect(client)


async def find_in_nats(client: Client, access: NatsAccess, streams: Sequence[str]) -> list[NatsLog]:
    """Return the wanted logs (all if none is named) that are in NATS."""
    names = [name for name in streams if name != "*"]
    if not streams or "*" in streams:
        names += [name for name in await list_logs(client) if name not in names]
    logs = [await look_up(client, access, name) for name in names]
    return [log for log in logs if log is not None]


def find_in_archive(options: SourceOptions) -> list[ArchivedLog]:
    """Return the wanted logs that are in the archive, if there is one.

    The archive must be read before NATS: archiving continues meanwhile, so an archive that reaches
    further than NATS belongs to another log.
    """
    if options.archive is None:
        return []
    from spark.tables.archive_log import archived_logs  # not before: Parquet takes long to import

    streams, logs = options.streams, archived_logs(options.archive)
    return [log for log in logs if not streams or "*" in streams or log.stream in streams]


def join_with_archive(
    options: SourceOptions, stored: Iterable[NatsLog], old: Iterable[ArchivedLog]
) -> list[StoredLog]:
    """Return the wanted logs, joining those in NATS with those in the archive.

    Raises as :func:`find_logs`, and OtherLog.
    """
    names_given = [name for name in options.streams if name != "*"]
    logs: dict[str, StoredLog] = {part.stream: part for part in stored}
    for part in old:
        new = logs.get(part.stream)
        logs[part.stream] = part if new is None else _joined(_reaching(part, new, options), new)
    for name in names_given:
        if name not in logs:
            raise NoLog(f"there is no log {escaped(name)} {_where(options)}")
    if not logs:
        raise NoLog(f"there is no log of foldmq {_where(options)}")
    if not options.streams and len(logs) > 1:
        names = sorted(logs)
        listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
        raise BadOption(
            f"there are {len(logs)} logs {_where(options)}: give stream, one or several of "
            f"{listed}, or * for all"
        )
    return [logs[name] for name in sorted(logs)]


def _where(options: SourceOptions) -> str:
    archive = None
    if options.archive is not None:
        from spark.tables.directories import directory_text

        archive = f"in the archive {directory_text(options.archive)}"
    nats = None if options.access is None else f"on {options.access.where}"
    return " or ".join(place for place in (nats, archive) if place is not None)


def _reaching(old: ArchivedLog, new: StoredLog, options: SourceOptions) -> ArchivedLog:
    """Return the part of a log in the archive; read again if the part in NATS begins behind it.

    The broker may have cut its log since the archive was read, because more was archived.
    """
    if new.first <= old.last + 1:
        return old
    return next((log for log in find_in_archive(options) if log.stream == old.stream), old)


def _joined(old: ArchivedLog, new: StoredLog) -> StoredLog:
    """Return both parts as one log; raises OtherLog if they belong to different logs.

    If the log in NATS begins behind the archive, the chain reveals that when it is read.
    """
    advice = "it was lost, restored or begun anew; read one of both alone"
    if new.last < old.last:
        raise OtherLog(
            f"the archive {old.folder} reaches record {old.last}, but log {new.stream} ends with "
            f"{new.last}: {advice}"
        )
    if new.first <= old.last == new.last:
        link = old.link_before(old.last + 1)
        if any(link_of(data) != link for _, data in new.read(old.last, old.last)):
            raise OtherLog(
                f"log {new.stream} has another record {old.last} than the archive {old.folder}: "
                f"{advice}"
            )
    return JoinedLog(old, new)


@dataclass(frozen=True, slots=True)
class JoinedLog:
    """A log with older records in an archive and newer ones in NATS.

    Records in both are read from the archive. The chain reveals whether both are the same log.
    """

    older: StoredLog
    newer: StoredLog

    @property
    def stream(self) -> str:
        """The name of the log."""
        return self.newer.stream

    @property
    def first(self) -> int:
        """Sequence of the first record in either."""
        return min((part.first for part in self._with_records()), default=1)

    @property
    def last(self) -> int:
        """Sequence of the last record in either."""
        return max((part.last for part in self._with_records()), default=0)

    @property
    def size(self) -> int:
        """Approximate bytes; records in both count once."""
        newer, more = self.newer, self.newer.last - max(self.newer.first, self.older.last + 1) + 1
        records = newer.last - newer.first + 1
        return self.older.size + (newer.size * max(0, more) // records if records > 0 else 0)

    @property
    def borders(self) -> tuple[int, ...]:
        """Sequences at which reading can begin cheaply: of files, and often enough in NATS."""
        newer = self.newer
        records = newer.last - newer.first + 1
        step = max(1, _STEP_BYTES * records // max(1, newer.size))
        behind = range(max(newer.first, self.older.last + 1), newer.last + 1, step)
        return (*self.older.borders, *behind)

    def read(self, first: int, last: int) -> Generator[tuple[int, bytes]]:
        """Yield (sequence, bytes) between two sequences, each once."""
        older, newer = self.older, self.newer
        if older.last < older.first:
            yield from newer.read(first, last)
            return
        for stored, low, high in (
            (newer, first, min(last, older.first - 1)),
            (older, max(first, older.first), min(last, older.last)),
            (newer, max(first, older.last + 1), last),
        ):
            if low <= high and max(low, stored.first) <= min(high, stored.last):
                yield from stored.read(low, high)

    def link_before(self, sequence: int) -> bytes | None:
        """Return the link of the record before a sequence; None if it must be read for that."""
        if self.older.first <= sequence <= self.older.last + 1:
            return self.older.link_before(sequence)
        return self.newer.link_before(sequence)

    def around(self, time_ms: int) -> tuple[int, int]:
        """Return the range of records that contains the last one not later than a time."""
        if self.older.last < self.older.first:
            return self.newer.around(time_ms)
        low, high = self.older.around(time_ms)
        if low == self.older.last:
            return low, self.last
        return (self.first - 1 if high < self.older.first else low), high

    def explain(self, sequence: int) -> FoldmqError | None:
        """Return why a record does not exist; None: it is missing."""
        if self.older.last < sequence < self.newer.first:
            return CorruptLog(
                sequence,
                f"and all up to {self.newer.first - 1} are neither in the archive, which ends with "
                f"record {self.older.last}, nor in NATS, where the log begins with record "
                f"{self.newer.first}",
            )
        return self.newer.explain(sequence) if sequence > self.older.last else None

    def place(self, sequence: int) -> str:
        """Return the place of a record for messages; empty: NATS."""
        if self.older.first <= sequence <= self.older.last:
            return self.older.place(sequence)
        return self.newer.place(sequence)

    def _with_records(self) -> list[StoredLog]:
        return [part for part in (self.older, self.newer) if part.last >= part.first]
