"""Copies what can be proven of a damaged log into a new data directory.

The damaged store is never modified: the records are read from its files as they are
(``eventstore.reading.stored_blocks``). Records whose checksum is right and that continue each other
are *runs*; all runs that fit together by their sequences are kept, byte by byte and under the same
sequences. Every other record is given up. Between two runs, records stand in for those that were
given up: the last of them has a LogSalvaged, which says what is missing, and which joins the chain
of both runs. At the end of the log, messages that sessions need and that are lost are dropped with
an event, and a log whose LogCut was given up gets another one.
"""

import asyncio
import getpass
import os
import shutil
import socket
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Protocol

from eventstore.datadir import DataDir, take_lock
from eventstore.encryption import StoreKey
from eventstore.errors import CorruptLog, DataDirBusy, DataDirError, NoLog
from eventstore.format.event_parsing import Event, entries
from eventstore.format.events import MessageDropped, MessagePublished
from eventstore.format.node_events import (
    CheckpointBegun,
    CheckpointCompleted,
    LogCut,
    LogEndUnproven,
    LogSalvaged,
    MessagesCarried,
    RetainedSnapshot,
)
from eventstore.format.positions import INDEX_BITS, Position, from_runs, sequence_of
from eventstore.format.records import (
    NO_JUMPS,
    Record,
    decode_record,
    encode_record,
    link_of,
)
from eventstore.log.record_reader import read_stored
from eventstore.log.watermark import Watermark
from eventstore.nats.jetstream import read_bounds
from eventstore.nats.log_stream import ensure_stream
from eventstore.reading.fresh_log import (
    FreshLog,
    begin_log,
    finish_directory,
    fresh_store,
    log_names,
    new_directory,
    opened_store,
    require_room,
    work_directory,
)
from eventstore.reading.salvage_plan import Hole, Plan, StoredLog
from eventstore.reading.stored_blocks import (
    FrameDamage,
    block_files,
    framed,
    is_compressed,
)
from eventstore.server.store_encryption import usable_key

_NAMED: Final = 20
"""Sessions that an event names."""
_NAME_LENGTH: Final = 256
"""Length of a name up to which it is named: an event must fit into a record."""
_EVENTS: Final = 256
"""Events of a record that the salvage adds."""


@dataclass(frozen=True, slots=True)
class SalvageResult:
    """The result of a salvage."""

    node: str
    records: int
    """Number of records that were kept."""
    entries: int
    until_ms: int
    """Time of the last kept record, Unix time in milliseconds."""
    known: int
    """Number of records that the log is known to have had."""
    holes: Sequence[Hole] = ()
    """The records that were given up."""
    sessions: Sequence[str] = ()
    """Sessions whose state may depend on them."""
    dropped: int = 0
    """Number of messages that sessions waited for, and that were lost."""
    stateless: bool = False
    """Whether no complete checkpoint was left at the beginning of a log that was cut."""
    beside: FrameDamage = field(default_factory=FrameDamage)
    """Damage beside the records."""
    unproven: LogEndUnproven | None = None
    """Why it is not known whether the damaged log ended with the last acknowledged record."""


class SessionNeeds(Protocol):
    """A fold of the log's records that knows which messages its sessions need."""

    def take(self, record: Record) -> None:
        """Fold the next record."""

    def doubtful(self) -> list[str]:
        """Return the sessions whose state may depend on lost records."""

    def neighbours(self, is_lost: Callable[[Position], bool]) -> set[Position]:
        """Return the messages that wait in a queue together with lost ones."""

    def drop_events(
        self, is_lost: Callable[[Position], bool], sizes: Mapping[Position, int]
    ) -> list[Event]:
        """Return the events that remove lost messages from the sessions that need them.

        ``sizes`` are the payload bytes of their neighbours.
        """


async def salvage(
    source: Path | str,
    target: Path | str,
    progress: Callable[[str, int, int], None],
    needs: Callable[[int], SessionNeeds],
    software: str = "",
    key: StoreKey | None = None,
    new_key: StoreKey | None = None,
) -> SalvageResult:
    """Copy what can be proven of the log in ``source`` to the new directory ``target``.

    ``progress(what, done, total)`` counts bytes that were read, then written records. ``needs``
    returns a fold that begins with a record. ``key`` opens an encrypted ``source``; ``target`` is
    encrypted with ``new_key``, or else with ``key``. Raises StoreKeyError, NoLog when there is no
    log, DataDirError when ``target`` is not empty or ``source`` has several logs, DataDirBusy when
    a broker uses ``source``, DiskFull, CorruptLog when not a single record is intact, and
    UnknownEvent or UnknownLogFormat for records of a later foldmq. In these cases ``target`` is
    unchanged.
    """
    damaged, new = DataDir(source), DataDir(target)
    if not damaged.jetstream.is_dir() or not any(_files(damaged.jetstream)):
        raise NoLog(
            f"data directory {damaged.path}: contains no log; that of a broker with --nats-url is "
            "in the store of its NATS server"
        )
    if several := damaged.log_names():
        raise DataDirError(
            damaged.path,
            f"has {len(several)} logs, and a salvage is of one: restore a backup (foldmq restore); "
            "foldmq log verify shows which log is damaged, and foldmq log reads what is before it",
        )
    node = damaged.node()
    new_key = new_key or key
    key = usable_key(damaged, key)
    if new.path.resolve().is_relative_to(damaged.path.resolve()):
        raise DataDirError(new.path, "is inside the damaged one: name a new directory elsewhere")
    async with new_directory(target) as new:
        with _exclusive_access(damaged):
            size = sum(file.stat().st_size for file in _files(damaged.jetstream))
            files = block_files(damaged.jetstream, log_names(node)[0])
            compressed = any(is_compressed(file, key) for file in files)
            if compressed and key is not None:
                raise DataDirError(
                    damaged.path,
                    "is compressed by its NATS server, and a salvage would write it to the disk "
                    "unencrypted: copy it with 'foldmq backup' and 'foldmq restore'",
                )
            require_room(new, (3 if compressed else 1) * size)
            if compressed:
                files = [await _as_plain_file(damaged, new, node, progress)]
            mark = Watermark(damaged.path / "log.mark", log_names(node)[0], beside=True)
            stored = StoredLog(files, node, progress, key)
            plan = await asyncio.to_thread(Plan, stored, mark.read())
            unproven = mark.unproven_end(plan.runs[-1].last, 0)
            work = Rescue(plan, node, str(damaged.path), software)
            if plan.holes or plan.begin > 1:
                await asyncio.to_thread(work.fold, needs)
            async with fresh_store(new, node, new_key) as client:
                await work.write(await begin_log(client, node, plan.begin), progress)
            if unproven is None:  # otherwise a start has to say so
                work.note_end(Watermark(new.path / "log.mark", log_names(node)[0]))
            finish_directory(new, node)
            return replace(work.result(), unproven=unproven)


def _files(folder: Path) -> Iterator[Path]:
    return (file for file in sorted(folder.rglob("*")) if file.is_file())


@contextmanager
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


async def _as_plain_file(
    damaged: DataDir, new: DataDir, node: str, progress: Callable[[str, int, int], None]
) -> Path:
    """Return a file with the messages that a server recovers from a copy of a compressed store."""
    copy = work_directory(new, "copy", node)
    await asyncio.to_thread(_copy, damaged, copy, progress)
    stream, subject = log_names(node)
    plain = copy.path / "1.blk"
    async with opened_store(copy, "always") as client:
        # a stream that was not recovered is created: NATS fills it with the messages it finds
        await ensure_stream(client, stream, [subject])
        first, last = await read_bounds(client, stream)
        with copy.open_private(plain) as file:
            position = first
            while position <= last:
                async for sequence, data in read_stored(client, stream, position, last):
                    file.write(framed(sequence, subject, data))
                    position = sequence
                position += 1  # the server returns nothing from here on: continue after it
    return plain


def _copy(damaged: DataDir, copy: DataDir, progress: Callable[[str, int, int], None]) -> None:
    files = list(_files(damaged.jetstream))
    total = sum(file.stat().st_size for file in files)
    copied = 0
    for file in files:
        place = copy.jetstream / file.relative_to(damaged.jetstream)
        try:
            place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            shutil.copyfile(file, place)
        except OSError as error:
            raise DataDirError(damaged.path, f"cannot copy {file.name}: {error.strerror}") from None
        copied += file.stat().st_size
        progress("copying", copied, total)


class Rescue:
    """Writes the records of a plan."""

    def __init__(self, plan: Plan, node: str, source: str, software: str) -> None:
        self._plan = plan
        self._node = node
        self._source = source
        self._software = software
        self._by = user_and_host()
        self._link = plan.before
        self._time_ms, self._jumps = 0, NO_JUMPS
        self._last = 0
        self._entries = 0
        self._sessions: list[str] = []
        self._closing: list[Event] = []
        self._dropped = 0
        self._stateless = False
        self._continued: list[tuple[int, int]] = []
        """Record and time of each start that continued a salvage whose last record is not before
        that of this one."""

    def fold(self, needs: Callable[[int], SessionNeeds]) -> None:
        """Find out which sessions depend on what was given up."""
        plan = self._plan
        state = needs(plan.begin)
        begun: Position | None = None
        whole = plan.begin == 1
        recorded = plan.begin == 1
        carried: set[Position] = set()
        for sequence, data in self._all_records():
            record = decode_record(sequence, data)
            for index, event in record.events():
                if isinstance(event, CheckpointBegun):
                    begun = sequence << INDEX_BITS | index
                elif isinstance(event, CheckpointCompleted):
                    whole = whole or event.begun == begun
                elif isinstance(event, LogCut):
                    recorded = recorded or event.first >= plan.begin
                elif isinstance(event, MessagesCarried):
                    carried.update(from_runs(event.refs))
                elif isinstance(event, LogSalvaged):
                    begun = None
                elif isinstance(event, LogEndUnproven) and event.salvaged >= plan.until:
                    self._continued.append((sequence, record.time_ms))
            state.take(record)
        if not whole and not plan.holes:
            raise CorruptLog(plan.begin, "begins the log, and no complete checkpoint follows it")

        def is_lost(ref: Position) -> bool:
            if ref in carried:
                return False
            sequence = sequence_of(ref)
            return sequence < plan.begin or any(
                hole.first <= sequence <= hole.last for hole in plan.holes
            )

        self._stateless = not whole
        self._sessions = state.doubtful() if plan.holes else []
        sizes = self._sizes(state.neighbours(is_lost))
        self._closing = state.drop_events(is_lost, sizes)
        self._dropped = sum(
            event.count for event in self._closing if isinstance(event, MessageDropped)
        )
        if not recorded:
            self._closing.append(LogCut(plan.begin, plan.before.hex(), self._time_ms, "salvage"))
        self._link, self._time_ms, self._jumps = plan.before, 0, NO_JUMPS

    def _sizes(self, messages: set[Position]) -> dict[Position, int]:
        """Return the payload bytes of messages."""
        sizes: dict[Position, int] = {}
        for sequence, data in self._plan.kept() if messages else ():
            for index, event in decode_record(sequence, data).events():
                if isinstance(event, (MessagePublished, RetainedSnapshot, MessagesCarried)):
                    begin = sequence << INDEX_BITS | index
                    refs: Sequence[Position] = range(begin, begin + event.count)
                    if isinstance(event, MessagesCarried):
                        refs = from_runs(event.refs)
                    bytes_of = event.sizes
                    each = [bytes_of] * event.count if isinstance(bytes_of, int) else bytes_of
                    sizes.update(
                        (ref, size) for ref, size in zip(refs, each, strict=True) if ref in messages
                    )
        return sizes

    def _all_records(self) -> Iterator[tuple[int, bytes]]:
        """Yield the records of the new log up to the end of the damaged one."""
        holes = list(reversed(self._plan.holes))
        behind: list[tuple[int, bytes]] = []
        """Records behind a hole that were written by an earlier salvage: their time is no end."""
        for sequence, data in self._plan.kept():
            record = decode_record(sequence, data)
            if not self._time_ms:
                self._jumps = record.jumps
            behind.append((sequence, data))
            if holes and holes[-1].first < sequence and not record.raw_events:
                continue
            yield from self._with_holes(behind, holes, record.time_ms)
            behind = []
            self._time_ms, self._jumps = record.time_ms, record.jumps
        yield from self._with_holes(behind, holes, 0)
        for hole in reversed(holes):
            yield from self._fill(hole, 0)

    def _with_holes(
        self, records: Iterable[tuple[int, bytes]], holes: list[Hole], ends_ms: int
    ) -> Iterator[tuple[int, bytes]]:
        """Yield records, and before each one what stands in for the holes there."""
        for sequence, data in records:
            while holes and holes[-1].first < sequence:
                yield from self._fill(holes.pop(), ends_ms)
            self._link = link_of(data)
            yield sequence, data

    def _fill(self, hole: Hole, ends_ms: int) -> Iterator[tuple[int, bytes]]:
        """Yield the records that stand in for a hole; ``ends_ms`` is the time of the next one."""
        begins_ms = self._time_ms
        for sequence in range(hole.first, hole.last + 1):
            events: list[Event] = []
            if sequence == hole.last:
                events.append(self._given_up(hole, begins_ms, ends_ms))
            yield sequence, self._encode(events, begins_ms or ends_ms)

    def _given_up(self, hole: Hole, begins_ms: int, ends_ms: int) -> LogSalvaged:
        return LogSalvaged(
            hole.first,
            hole.last,
            hole.link,
            hole.last - hole.first + 1,
            hole.bytes,
            self._plan.until,
            self._source,
            self._by,
            self._software,
            [name for name in self._sessions if len(name) <= _NAME_LENGTH][:_NAMED],
            len(self._sessions),
            begins_ms=begins_ms,
            ends_ms=ends_ms,
            known=[time_ms for sequence, time_ms in self._continued if sequence > hole.last],
        )

    def _encode(self, events: Sequence[Event], time_ms: int) -> bytes:
        data = encode_record(
            previous=self._link,
            node=self._node,
            time_ms=time_ms,
            events=events,
            payloads=[],
            jumps=self._jumps,
        )
        self._link = link_of(data)
        return data

    async def write(self, log: FreshLog, progress: Callable[[str, int, int], None]) -> None:
        """Write the new log."""
        plan = self._plan
        for sequence, data in self._all_records():
            await log.append(data)
            progress("saving", sequence - plan.begin + 1, plan.until - plan.begin + 1)
            self._entries += sum(
                entries(event)
                for _, event in decode_record(sequence, data).events()
                if not isinstance(event, LogSalvaged)
            )
        # A record behind the damaged log ends the doubt about its state, also without events.
        for start in range(0, max(len(self._closing), min(len(plan.holes), 1)), _EVENTS):
            await log.append(self._encode(self._closing[start : start + _EVENTS], self._time_ms))
        await log.check_end(self._link)
        self._last = log.sequence

    def note_end(self, mark: Watermark) -> None:
        """Note the last record of the new log as stored."""
        mark.write(self._last, self._link)

    def result(self) -> SalvageResult:
        """Return what was done."""
        plan = self._plan
        return SalvageResult(
            self._node,
            sum(run.count for run in plan.runs),
            self._entries,
            self._time_ms,
            plan.until - plan.begin + 1,
            plan.holes,
            self._sessions,
            self._dropped,
            self._stateless,
            plan.beside,
        )


def user_and_host() -> str:
    """Return the user that runs this command, and the host."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):
        user = str(os.getuid())
    return f"{user}@{socket.gethostname()}"
