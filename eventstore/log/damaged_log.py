"""Copies the intact part of a damaged log into a new data directory.

The damaged store is never modified: a NATS server that starts on it may cut off what it cannot
read. Instead the store is copied, and a server recovers the copy. The records are read in order up
to the first damaged one, and another server stores them, byte by byte, under the same sequences.
The new directory gets its log and its node id only when all records are on disk.

A log that was cut contains a record of the cut near its end. If that is not among the intact
records, such a record is added, after the messages from before the cut that can still be read.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Final, Protocol

import nats.errors

from eventstore.datadir import DataDir, take_lock
from eventstore.errors import (
    CorruptLog,
    DataDirBusy,
    DataDirError,
    DiskFull,
    NatsUnavailable,
    NoLog,
    UnknownLogFormat,
)
from eventstore.format import (
    ChainChecker,
    CheckpointBegun,
    CheckpointCompleted,
    LogCut,
    MessagesCarried,
    Position,
    Record,
    UnknownEvent,
    UnreadableEvent,
    decode_record,
    encode_record,
    entries,
    from_runs,
    link_of,
    position,
)
from eventstore.log.log_start import check_beginning, check_first, find_cut
from eventstore.log.record_reader import read_stored, read_tail
from eventstore.log.watermark import Watermark
from eventstore.nats import (
    ConnectionOptions,
    connect,
    disconnect,
    ensure_stream,
    publish_expecting,
    purge,
    read_bounds,
)
from eventstore.server import EmbeddedServer

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
    from pathlib import Path

    from nats.aio.client import Client

    from eventstore.format import Event
    from eventstore.log.log_start import RecordedCut
    from eventstore.server import Sync

_WORK: Final = "salvage.tmp"
_SYNC_SECONDS: Final = 30.0
"""Sync interval of the server that writes. It need not sync each record: all files are synced at
the end."""
_WRITE_TIMEOUT: Final = 30.0


@dataclass(frozen=True, slots=True)
class SalvageResult:
    """The result of a salvage."""

    node: str
    records: int
    entries: int
    until_ms: int
    """Time of the last record, Unix time in milliseconds."""
    known: int
    """Number of records that the log is known to have had."""
    problem: str | None
    """The damage after the salvaged records; None when every record was intact."""
    emptied: Sequence[str] = ()
    """Sessions that needed messages that were lost: they begin again, empty except for their
    subscriptions."""


class SessionNeeds(Protocol):
    """A fold of the log's records that knows which messages its sessions need."""

    def take(self, record: Record) -> None:
        """Fold the next record."""

    def before(self, first: Position) -> dict[str, set[Position]]:
        """Return the messages before a position that sessions need, by session."""

    def reset_events(self, session: str) -> list[Event]:
        """Return the events that remove everything from a session except its subscriptions."""


async def salvage(
    source: Path | str,
    target: Path | str,
    progress: Callable[[str, int, int], None],
    needs: Callable[[int], SessionNeeds] | None = None,
) -> SalvageResult:
    """Copy the intact beginning of the log in ``source`` to the new directory ``target``.

    ``progress(what, done, total)`` counts the copied bytes, then the written records. ``needs``
    returns a fold that begins with a record: without it, a log that was cut is not salvaged if
    messages that it needs may be lost. Raises NoLog when there is no log, DataDirError when
    ``target`` is not empty, DataDirBusy when a broker uses ``source``, DiskFull, CorruptLog when
    not even the first record is intact, and UnknownEvent or UnknownLogFormat for records of a later
    foldmq. In these cases ``target`` is unchanged.
    """
    damaged, new = DataDir(source), DataDir(target)
    node = _check_source(damaged)
    _check_target(damaged, new)
    existed = new.path.exists()
    with _exclusive_access(damaged), new:
        try:
            return await _build(damaged, new, node, progress, needs)
        except BaseException:
            _undo(new.path, existed=existed)
            raise


async def _build(
    damaged: DataDir,
    new: DataDir,
    node: str,
    progress: Callable[[str, int, int], None],
    needs: Callable[[int], SessionNeeds] | None,
) -> SalvageResult:
    need = 2 * sum(file.stat().st_size for file in _files(damaged.jetstream))
    if new.free_bytes() < need:
        raise DiskFull(f"{new.path} (about {need:,} bytes are needed)")
    copy, fresh = (DataDir(new.path / _WORK / name) for name in ("copy", "fresh"))
    for made in (copy, fresh):
        made.path.mkdir(mode=0o700, parents=True)
        made.write_private(made.path / "node", node + "\n")
    await asyncio.to_thread(_copy, damaged, copy, progress)
    mark = Watermark(damaged.path / "log.mark", _names(node)[0])
    saved = await _save(copy, fresh, mark, progress, needs)
    await asyncio.to_thread(_sync, fresh.jetstream)
    fresh.jetstream.rename(new.jetstream)
    new.write_private(new.path / "node", node + "\n")
    shutil.rmtree(new.path / _WORK)
    return saved


def _names(node: str) -> tuple[str, str]:
    return f"FOLDMQ_LOG_{node}", f"foldmq.log.{node}"


def _check_source(damaged: DataDir) -> str:
    if not damaged.jetstream.is_dir() or not any(_files(damaged.jetstream)):
        raise NoLog(f"data directory {damaged.path}: contains no log")
    return damaged.node()


def _check_target(damaged: DataDir, new: DataDir) -> None:
    if new.path.resolve().is_relative_to(damaged.path.resolve()):
        raise DataDirError(new.path, "is inside the damaged one: name a new directory elsewhere")
    try:
        empty = not any(new.path.iterdir())
    except FileNotFoundError:
        return
    except OSError as error:
        raise DataDirError(new.path, f"cannot be used: {error.strerror}") from None
    if not empty:
        raise DataDirError(new.path, "is not empty: name a new directory")


@contextlib.contextmanager
def _exclusive_access(damaged: DataDir) -> Iterator[None]:
    """Keep brokers and NATS servers away from the damaged store."""
    with damaged:
        held = take_lock(damaged.nats_lock)
        if held is None:
            raise DataDirBusy(damaged.path, None, "a NATS server that an earlier broker left")
        try:
            yield
        finally:
            os.close(held)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


def _copy(damaged: DataDir, copy: DataDir, progress: Callable[[str, int, int], None]) -> None:
    files = list(_files(damaged.jetstream))
    total = sum(file.stat().st_size for file in files)
    done = 0
    for file in files:
        place = copy.jetstream / file.relative_to(damaged.jetstream)
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(file, place)
        except OSError as error:
            raise DataDirError(damaged.path, f"cannot copy {file.name}: {error.strerror}") from None
        done += file.stat().st_size
        progress("copying", done, total)


async def _save(
    copy: DataDir,
    fresh: DataDir,
    mark: Watermark,
    progress: Callable[[str, int, int], None],
    needs: Callable[[int], SessionNeeds] | None,
) -> SalvageResult:
    """Read the records of the copy and write the intact ones into a fresh log."""
    node = copy.node()
    stream, subject = _names(node)
    async with _opened(copy, "always") as old, _opened(fresh, _SYNC_SECONDS) as new:
        first, last = await read_bounds(old, stream)
        begin = first if first <= last else 1
        cut = await find_cut(partial(read_stored, old, stream), begin, last) if begin > 1 else None
        check_beginning(begin, cut)
        good = _IntactRecords(mark.read(), begin, cut, needs(begin) if needs is not None else None)
        known = max(last, good.noted[0])
        problem = None
        if begin > 1:  # purging an empty stream sets the sequence at which it begins
            await purge(new, stream, begin)
        try:
            async for sequence, data in read_stored(old, stream, begin, last):
                good.take(sequence, data)
                await _append(new, subject, sequence, data)
                progress("saving", sequence - begin + 1, last - begin + 1)
            good.check_end(known)
        except (CorruptLog, UnreadableEvent) as error:
            if isinstance(error, UnknownEvent) or good.sequence < begin:
                raise
            problem = str(error)
            if isinstance(error, CorruptLog):
                problem = f"record {error.sequence} {error.what}"
        kept, emptied = good.sequence, []
        if begin > 1:
            emptied = await _finish(
                good, node, partial(read_stored, old, stream, kept + 1, last), new
            )
        tail = await read_tail(new, stream, subject)
        if (tail.sequence, tail.link) != (good.sequence, good.link):
            raise NatsUnavailable(f"the new log in {fresh.path} does not contain what was written")
    return SalvageResult(
        node, kept - begin + 1, good.entries, good.until_ms, known - begin + 1, problem, emptied
    )


class _IntactRecords:
    """Checks records in order and accepts them until the first damaged one."""

    def __init__(
        self,
        noted: tuple[int, bytes] | None,
        begin: int,
        cut: RecordedCut | None,
        needs: SessionNeeds | None,
    ) -> None:
        self.begin = begin
        self.sequence = begin - 1
        """The last intact record."""
        self.link = b""
        self.entries = 0
        self.until_ms = 0
        self.noted = noted or (0, b"")
        self.needs = needs
        self.whole = begin == 1
        """Whether the log contains a complete state."""
        self.cut = begin == 1
        """Whether the log records that it may begin where it does."""
        self.first: Record | None = None
        self.carried: set[Position] = set()
        self._newest = cut
        self._begun: Position | None = None
        self._chain = ChainChecker() if begin == 1 else None

    def take(self, sequence: int, data: bytes) -> None:
        """Count a record; raise CorruptLog or UnreadableEvent when it is damaged."""
        record = decode_record(sequence, data)
        if self.noted[0] == sequence and self.noted[1] != record.link:
            raise CorruptLog(sequence, "is not the one that was acknowledged")
        events = list(record.events())
        if self._chain is None:
            if sequence != self.begin:
                raise CorruptLog(self.begin, "is missing or cannot be read")
            check_first(record, self._newest)
            self._chain = ChainChecker.before(record)
        self._chain.check(record)
        if self.first is None:
            self.first = record
        if self.begin > 1:
            self._look(record, events)
        self.sequence, self.link = sequence, record.link
        self.entries += sum(entries(event) for _, event in events)
        self.until_ms = record.time_ms

    def _look(self, record: Record, events: Iterable[tuple[int, Event]]) -> None:
        """Record the parts of a cut log that were found."""
        for index, event in events:
            if isinstance(event, CheckpointBegun):
                self._begun = position(record.sequence, index)
            elif isinstance(event, CheckpointCompleted):
                self.whole = self.whole or event.begun == self._begun
            elif isinstance(event, LogCut):
                self.cut = self.cut or event.first >= self.begin
            elif isinstance(event, MessagesCarried):
                self.carried.update(from_runs(event.refs))
        if self.needs is not None:
            self.needs.take(record)

    def check_end(self, known: int) -> None:
        """Raise CorruptLog when records are missing at the end."""
        if self.sequence < known:
            raise CorruptLog(self.sequence + 1, "is missing or cannot be read")


async def _finish(
    good: _IntactRecords,
    node: str,
    behind: Callable[[], AsyncIterator[tuple[int, bytes]]],
    new: Client,
) -> list[str]:
    """Complete a log that was cut, so that a broker can continue it.

    ``behind`` yields the stored messages after the intact records. Returns the sessions that begin
    again. Raises CorruptLog when the state cannot be derived from the rest of the log.
    """
    if not good.whole:
        raise CorruptLog(
            good.sequence + 1, "is damaged or missing, and no complete checkpoint precedes it"
        )
    if good.cut or good.first is None:
        return []
    async for _, data in behind():
        for event, payload in _carried_in(data, good):
            await _add(new, good, node, [event], payload)
    emptied: list[str] = []
    if good.needs is None:
        raise CorruptLog(good.sequence + 1, "is damaged, as are messages from before the cut")
    for session, refs in good.needs.before(position(good.begin, 0)).items():
        if refs - good.carried:
            await _add(new, good, node, good.needs.reset_events(session))
            emptied.append(session)
    first = good.first
    cut = LogCut(good.begin, first.previous.hex(), first.time_ms, "salvage")
    await _add(new, good, node, [cut])
    return emptied


def _carried_in(data: bytes, good: _IntactRecords) -> Iterator[tuple[MessagesCarried, bytes]]:
    """Yield the messages from before the cut that a record repeats; none if it is unreadable."""
    if b'"MessagesCarried"' not in data:
        return
    try:
        record = decode_record(good.sequence, data)
        events = [event for _, event in record.events()]
    except (CorruptLog, UnknownLogFormat, UnreadableEvent):
        return
    for event in events:
        if isinstance(event, MessagesCarried):
            pieces = record.pieces(event)
            event.at = sum(event.blocks)
            good.carried.update(from_runs(event.refs))
            yield event, b"".join(pieces)


async def _add(
    new: Client, good: _IntactRecords, node: str, events: Sequence[Event], payload: bytes = b""
) -> None:
    """Append a record to the new log."""
    data = encode_record(
        previous=good.link, node=node, time_ms=good.until_ms, events=events, payloads=[payload]
    )
    await _append(new, _names(node)[1], good.sequence + 1, data)
    good.sequence, good.link = good.sequence + 1, link_of(data)


@asynccontextmanager
async def _opened(datadir: DataDir, sync: Sync) -> AsyncIterator[Client]:
    """Run a server on a directory and yield a connection to it; the log's stream exists."""
    server = EmbeddedServer(datadir, sync=sync)
    await server.start()
    try:
        access = ConnectionOptions(urls=(server.url,), user=server.user, password=server.password)
        client = await connect(access)
        try:
            stream, subject = _names(datadir.node())
            # a stream that was not recovered is created: NATS fills it with the messages it finds
            await ensure_stream(client, stream, [subject])
            yield client
        finally:
            await disconnect(client)
    finally:
        await server.stop()


async def _append(client: Client, subject: str, sequence: int, data: bytes) -> None:
    try:
        answer = await publish_expecting(client, subject, data, sequence - 1, _WRITE_TIMEOUT)
    except (TimeoutError, nats.errors.Error) as error:
        what = f"{error or 'time-out'}"
        raise NatsUnavailable(f"record {sequence} cannot be written: {what}") from None
    if "error" in answer or answer["seq"] != sequence:
        raise NatsUnavailable(f"record {sequence} cannot be written: {answer}")


def _sync(folder: Path) -> None:
    for path in [folder, *folder.rglob("*")]:
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _undo(path: Path, *, existed: bool) -> None:
    """Remove the files created in a directory that was empty or did not exist."""
    if not path.is_dir():
        return
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    if not existed:
        path.rmdir()
