"""The logs that options name: in NATS, in an archive, or in both as one."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from eventstore.connection import disconnect
from eventstore.errors import CorruptLog
from eventstore.logs import list_logs
from eventstore.shown import escaped
from spark import archived
from spark.access import look_up
from spark.failures import BadOption, NoLog

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from nats.aio.client import Client

    from protocol.errors import FoldmqError
    from spark.access import Access, NatsStored
    from spark.options import Options
    from spark.stored import Stored

_LISTED: Final = 10
_STEP_BYTES: Final = 4 << 20


def find(options: Options) -> list[Stored]:
    """Return the logs as they are now, each once, in the order of their names.

    Raises NoLog, BadOption when it must be said which, NatsUnavailable, and what reading the
    archive raises.
    """
    access = options.access
    return find_with(options, [] if access is None else asyncio.run(_ask(access, options.streams)))


async def _ask(access: Access, wanted: Sequence[str]) -> list[NatsStored]:
    client = await access.open()
    try:
        return await in_nats(client, access, wanted)
    finally:
        await disconnect(client)


async def in_nats(client: Client, access: Access, wanted: Sequence[str]) -> list[NatsStored]:
    """Return those of the wanted logs (all without a name) that are in NATS."""
    names = [name for name in wanted if name != "*"]
    if not wanted or "*" in wanted:
        names += [name for name in await list_logs(client) if name not in names]
    found = [await look_up(client, access, name) for name in names]
    return [one for one in found if one is not None]


def find_with(options: Options, stored: Iterable[NatsStored]) -> list[Stored]:
    """Return the wanted logs, of which these are in NATS; raises as :func:`find`."""
    wanted = [name for name in options.streams if name != "*"]
    logs: dict[str, Stored] = {one.stream: one for one in stored}
    if options.archive is not None:
        for old in archived.plan(options.archive):
            if not wanted or old.stream in wanted or "*" in options.streams:
                new = logs.get(old.stream)
                logs[old.stream] = old if new is None else JoinedStored(old, new)
    for name in wanted:
        if name not in logs:
            raise NoLog(f"there is no log {escaped(name)} {_where(options)}")
    if not logs:
        raise NoLog(f"there is no foldmq log {_where(options)}")
    if not options.streams and len(logs) > 1:
        names = sorted(logs)
        listed = ", ".join(names[:_LISTED]) + (", ..." if len(names) > _LISTED else "")
        raise BadOption(
            f"there are {len(logs)} logs {_where(options)}: give stream, one or several of "
            f"{listed}, or * for all"
        )
    return [logs[name] for name in sorted(logs)]


def _where(options: Options) -> str:
    archive = None if options.archive is None else f"in the archive {escaped(options.archive)}"
    nats = None if options.access is None else f"on {options.access.where}"
    return " or ".join(place for place in (nats, archive) if place is not None)


@dataclass(frozen=True, slots=True)
class JoinedStored:
    """A log whose older records are in an archive, and whose newer ones are in NATS.

    What is in both is read from the archive. That both are of one log shows in the chain.
    """

    older: Stored
    newer: Stored

    @property
    def stream(self) -> str:
        """The name of the log."""
        return self.newer.stream

    @property
    def first(self) -> int:
        """Sequence of the first record that one of both has."""
        return min((one.first for one in self._with_records()), default=1)

    @property
    def last(self) -> int:
        """Sequence of the last record that one of both has."""
        return max((one.last for one in self._with_records()), default=0)

    @property
    def size(self) -> int:
        """Bytes, about; what is in both counts once."""
        newer, more = self.newer, self.newer.last - max(self.newer.first, self.older.last + 1) + 1
        records = newer.last - newer.first + 1
        return self.older.size + (newer.size * max(0, more) // records if records > 0 else 0)

    @property
    def borders(self) -> tuple[int, ...]:
        """Sequences with which it is cheap to begin: of files, and often enough in NATS."""
        newer = self.newer
        records = newer.last - newer.first + 1
        step = max(1, _STEP_BYTES * records // max(1, newer.size))
        behind = range(max(newer.first, self.older.last + 1), newer.last + 1, step)
        return (*self.older.borders, *behind)

    def read(self, first: int, last: int) -> Iterator[tuple[int, bytes]]:
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

    def explain(self, sequence: int) -> FoldmqError | None:
        """Return why a record is not there; None: it is missing."""
        if self.older.last < sequence < self.newer.first:
            return CorruptLog(
                sequence,
                f"and all up to {self.newer.first - 1} are neither in the archive, which ends with "
                f"record {self.older.last}, nor in NATS, where the log begins with record "
                f"{self.newer.first}",
            )
        return self.newer.explain(sequence) if sequence > self.older.last else None

    def place(self, sequence: int) -> str:
        """Name what has a record, for a person; empty: NATS."""
        if self.older.first <= sequence <= self.older.last:
            return self.older.place(sequence)
        return self.newer.place(sequence)

    def _with_records(self) -> list[Stored]:
        return [one for one in (self.older, self.newer) if one.last >= one.first]
