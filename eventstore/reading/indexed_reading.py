"""Reads only those records of a log that its index lists."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from eventstore.errors import CorruptLog
from eventstore.format.event_parsing import are_current
from eventstore.format.records import Record
from eventstore.reading.index_files import IndexFiles
from eventstore.reading.log_index import LogIndex
from eventstore.reading.segment import BadIndex

if TYPE_CHECKING:
    from eventstore.reading.log_source import LogSource

_AT_ONCE = 64
_Answer = TypeVar("_Answer")


async def with_index(source: LogSource, path: Path) -> LogSource:
    """Return the log with the index in a directory, if that is an index of this log.

    An index that is damaged, of another log, or ahead of this one is not used. Its files are closed
    when the index is garbage-collected.
    """
    files = IndexFiles(path, source.key)
    try:
        files.open(source.stream)
    except (BadIndex, OSError):
        return source
    if not await is_of(source, files):
        return source
    return source.indexed(LogIndex(files.segments, source.begin))


async def is_of(source: LogSource, files: IndexFiles) -> bool:
    """Return whether a log still contains the last record of an index as it was indexed.

    The chain of links makes this record identify all records before it.
    """
    head = files.head
    if head is None or not source.begin <= head.last <= source.last:
        return False
    try:
        record = next(iter(await source.some([head.last])))
    except CorruptLog:
        return False
    return record.link.hex() == head.link


async def asked_of(source: LogSource, ask: Callable[[LogSource], Awaitable[_Answer]]) -> _Answer:
    """Return the answer of a log with its index, or of all its records if that raises BadIndex."""
    try:
        return await ask(source)
    except BadIndex:
        return await ask(source.indexed(None))


async def read_listed(
    source: LogSource, choose: Callable[[LogIndex], Sequence[int]], first: int, last: int
) -> AsyncIterator[Record]:
    """Yield the records between two sequences that ``choose`` selects from the index.

    All records that are not indexed are yielded, and all after the first record that differs from
    the indexed one. Raises as :meth:`LogSource.records`, and UnknownEvent where a record that is
    not indexed has events of a later foldmq, whatever they are about.
    """
    index, reached = source.index, first - 1
    if first <= index.last and last >= index.first:
        if first < index.first:
            async for record in source.records(first, index.first - 1):
                check_known(record)
                yield record
                reached = record.sequence
        with contextlib.suppress(BadIndex):
            begin = max(first, index.first)
            listed = [sequence for sequence in choose(index) if begin <= sequence <= last]
            for chunk in _chunks(listed):
                for record in await fetch_listed(source, chunk):
                    yield record
                    reached = record.sequence
            reached = min(last, index.last)
    if reached < last:
        async for record in source.records(reached + 1, last):
            check_known(record)
            yield record


def check_known(record: Record) -> None:
    """Raise UnknownEvent if a record has an event of a later foldmq; others are not parsed."""
    if not are_current(record.raw_events):
        list(record.events())  # its errors say which event is unknown


async def fetch_listed(source: LogSource, sequences: Sequence[int]) -> list[Record]:
    """Return the records with these sequences in order.

    Raises BadIndex if one differs from the indexed one, and as :meth:`LogSource.some`.
    """
    chosen = set(sequences)
    records = {record.sequence: record for record in await source.some(chosen)}
    index = source.index
    for sequence in chosen:
        index.check(records[sequence])
    return [records[sequence] for sequence in sorted(chosen)]


def _chunks(sequences: Sequence[int]) -> Iterator[list[int]]:
    remaining = iter(sequences)
    while chunk := list(islice(remaining, _AT_ONCE)):
        yield chunk
