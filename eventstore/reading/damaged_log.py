"""Copies what can be proven of a damaged log into a new data directory.

The damaged store is never modified: the records are read from its files as they are
(``eventstore.reading.damaged_log``). Records whose checksum is right and that continue each other
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
from typing import Final, NamedTuple, Protocol

from eventstore.datadir import DataDir, take_lock
from eventstore.encryption import StoreKey
from eventstore.errors import CorruptLog, DataDirBusy, DataDirError, NoLog, UnknownLogFormat
from eventstore.format.event_parsing import Event, UnknownEvent, UnreadableEvent, entries
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
    FORMAT,
    GENESIS,
    MAGIC,
    NO_JUMPS,
    Record,
    decode_record,
    encode_record,
    format_of,
    is_intact,
    link_of,
    mentions,
    previous_of,
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
from eventstore.server.store_encryption import read_block, usable_key

# A server that finds damage may cut off the rest of a file, or refuse it. Each message is stored
# as, with integers little-endian: length of the whole (4 bytes, the highest bit set if there are
# headers), sequence (8), time (8), length of the subject (2), subject, headers with their length
# (4) if there are any, data, checksum (8). Of these only the data count here: a record has a
# checksum and a link of its own, so that damage around it costs nothing.

_FRAME: Final = 20
"""Bytes before the length of the subject."""
_CHECKSUM: Final = 8
_HEADERS: Final = 4096
"""Bytes after the subject within which a record begins."""
_LENGTH: Final = 0x7FFF_FFFF
_TOMBSTONE: Final = _FRAME + 2 + _CHECKSUM
"""Bytes of a message that stands for a deleted one: it has neither subject nor data."""
_COMPRESSED: Final = b"cmp"


class StoredBytes(NamedTuple):
    """What the store contains of one message."""

    sequence: int
    """Its sequence as stored; it may be damaged."""
    data: bytes
    """The record; of a damaged one what is there."""


@dataclass(slots=True)
class FrameDamage:
    """Damage beside the records, which costs none of them: NATS stores more than these."""

    frames: int = 0
    """Number of messages whose record is intact, but not their length, sequence or subject."""
    stray: int = 0
    """Number of bytes that belong to no message."""


def block_files(store: Path, stream: str) -> list[Path]:
    """Return the files with the messages of a stream, in order."""
    found = store.glob(f"jetstream/*/streams/{stream}/msgs/*.blk")
    return sorted(
        (file for file in found if file.stem.isdecimal()), key=lambda file: int(file.stem)
    )


def is_compressed(file: Path, key: StoreKey | None = None) -> bool:
    """Return whether the server has compressed a file. Raises DataDirError."""
    return _messages_in(file, key, len(_COMPRESSED)) == _COMPRESSED


def _messages_in(file: Path, key: StoreKey | None, size: int = -1) -> bytes:
    try:
        return read_block(file, key, size)
    except OSError as error:
        raise DataDirError(file, f"cannot be read: {error.strerror}") from None


def framed(sequence: int, subject: str, data: bytes) -> bytes:
    """Return a message as a file stores it; its time and checksum are 0, and nothing reads them."""
    name = subject.encode()
    size = _FRAME + 2 + len(name) + len(data) + _CHECKSUM
    return b"".join(
        (
            size.to_bytes(4, "little"),
            sequence.to_bytes(8, "little"),
            bytes(8),
            len(name).to_bytes(2, "little"),
            name,
            data,
            bytes(_CHECKSUM),
        )
    )


def read_blocks(
    files: list[Path], subject: str, key: StoreKey | None, damage: FrameDamage
) -> Iterator[StoredBytes]:
    """Yield what files contain of the messages of a subject, in order; raises DataDirError.

    ``key`` opens those of an encrypted store. What is wrong beside the records is added to
    ``damage``.
    """
    name = subject.encode()
    word = len(name).to_bytes(2, "little") + name
    for file in files:
        yield from _messages(_messages_in(file, key), word, damage)


def _messages(file: bytes, word: bytes, damage: FrameDamage) -> Iterator[StoredBytes]:
    at, size = 0, len(file)
    while at < size:
        found = file.find(word, at + _FRAME)
        frame = found - _FRAME if found >= 0 else size
        if frame > at:  # a message whose own subject is damaged
            begin = file.find(MAGIC, at, frame)
            if begin >= 0:
                data = file[begin : frame - _CHECKSUM]
                damage.frames += is_intact(data)
                yield StoredBytes(0, data)
            else:
                damage.stray += _stray(file[at:frame])
        if found < 0:
            return
        length = int.from_bytes(file[frame : frame + 4], "little")
        sequence = int.from_bytes(file[frame + 4 : frame + 12], "little")
        begin = found + len(word)
        if length > _LENGTH:
            begin += 4 + int.from_bytes(file[begin : begin + 4], "little")
        end = frame + (length & _LENGTH)
        if end > size or not is_intact(file[begin : end - _CHECKSUM]):
            # Damaged, perhaps only around the record: it ends before the next message.
            following = file.find(word, found + len(word))
            if following >= 0:
                end = following - _FRAME
            elif not size < end <= size + _CHECKSUM:  # else only the server's checksum is cut off
                end = size
            begin = found + len(word)
            magic = file.find(MAGIC, begin, min(end, begin + _HEADERS))
            begin = magic if magic >= 0 else begin
            damage.frames += is_intact(file[begin : end - _CHECKSUM])
        yield StoredBytes(sequence, file[begin : end - _CHECKSUM])
        at = end


def _stray(rest: bytes) -> int:
    """Return the number of bytes between two messages that stand for no deleted message."""
    at = 0
    while int.from_bytes(rest[at : at + 4], "little") == _TOMBSTONE <= len(rest) - at and rest[
        at + _FRAME : at + _FRAME + 2
    ] == bytes(2):
        at += _TOMBSTONE
    return len(rest) - at


_NAMED: Final = 20
"""Sessions that an event names."""
_NAME_LENGTH: Final = 256
"""Length of a name up to which it is named: an event must fit into a record."""
_VOTES: Final = 3
"""Messages whose sequences decide on the first sequence of a run."""
_EVENTS: Final = 256
"""Events of a record that the salvage adds."""


@dataclass(slots=True)
class Hole:
    """Records that were given up, next to each other."""

    first: int
    last: int
    link: str
    """Link of the last one, as the next kept record names it; empty if there is none."""
    bytes: int
    """Bytes of them that are still in the store."""
    why: str
    """What is wrong with the first one."""

    def __str__(self) -> str:
        """Return the records as text."""
        if self.first == self.last:
            return f"record {self.first} {self.why}"
        return f"records {self.first} to {self.last}: record {self.first} {self.why}"


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


_LATER = "record {} of the log has format {}: use the foldmq that wrote it, or a later one"


class _Link(NamedTuple):
    """A message of the store: an intact record, or damage."""

    sequence: int
    data: bytes
    problem: str | None = None


class StoredLog:
    """The messages in the files of a store, each read and checked."""

    def __init__(
        self,
        files: list[Path],
        node: str,
        progress: Callable[[str, int, int], None],
        key: StoreKey | None = None,
    ) -> None:
        self._files = files
        self._key = key
        self._subject = log_names(node)[1]
        self._progress = progress
        self.beside = FrameDamage()
        """Damage beside the records that were read so far."""

    def messages(self) -> Iterator[_Link]:
        """Yield the messages in order. Raises UnknownLogFormat and UnknownEvent."""
        later: UnknownLogFormat | UnknownEvent | None = None
        link = b""
        self.beside = FrameDamage()
        for number, file in enumerate(self._files, 1):
            for sequence, data in read_blocks([file], self._subject, self._key, self.beside):
                checked = _checked(sequence, data, link)
                if isinstance(checked, (UnknownLogFormat, UnknownEvent)):
                    later = checked
                    checked = _Link(sequence, data, "is of a later version")
                elif data[:3] == MAGIC and data[3] > FORMAT and checked.problem is None:
                    # Whole but for its version: damage if a record of a known one follows.
                    later = UnknownLogFormat(_LATER.format(sequence, data[3]))
                elif checked.problem is None:
                    later = None  # versions only grow: it is damage
                link = link_of(checked.data) if checked.problem is None else b""
                yield checked
            self._progress("reading", number, len(self._files))
        if later is not None:
            raise later


def _checked(sequence: int, data: bytes, link: bytes) -> _Link | UnknownLogFormat | UnknownEvent:
    """Return a stored message; ``link`` is that of the record before it, if it is intact."""
    later: UnknownLogFormat | None = None
    if is_intact(data) and data[:4] != (begin := MAGIC + bytes([format_of(data)])):
        # The checksum does not cover the version: only its place shows that it is damaged.
        if data[:3] == MAGIC and data[3] not in range(1, FORMAT + 1):
            later = UnknownLogFormat(_LATER.format(sequence, data[3]))
            if not (link and previous_of(data) == link):
                return later
        data = begin + data[4:]
    try:
        for _ in decode_record(sequence, data).events():
            pass
    except (UnknownEvent, UnknownLogFormat) as error:
        return error
    except UnreadableEvent as error:
        said = str(error).removeprefix(f"record {sequence}, ")
        return _Link(sequence, data, f"cannot be read: {said}")
    except CorruptLog as error:
        return later or _Link(sequence, data, error.what)
    return _Link(sequence, data)


@dataclass(slots=True)
class _Run:
    """Intact records that continue each other."""

    number: int
    """Number of the first one among the intact messages of the store."""
    previous: bytes
    """Link that the first record continues."""
    link: bytes
    """Link of the first record."""
    begins: bool
    """Whether the first record begins a checkpoint."""
    why: str
    """The damage before it."""
    bytes: int
    """Bytes of what is damaged before it."""
    first: int = 0
    """Sequence of the first record."""
    count: int = 0

    @property
    def last(self) -> int:
        """Sequence of the last record."""
        return self.first + self.count - 1

    def without_first(self, count: int) -> None:
        """Leave out records at the beginning."""
        self.number += count
        self.first += count
        self.count -= count
        self.begins = False


class Plan:
    """Which records of a store are kept, and what is given up."""

    def __init__(self, stored: StoredLog, mark: tuple[int, bytes] | None) -> None:
        self._stored = stored
        self._mark = mark
        self.begin = 1
        self.before = GENESIS
        """Link that the first record continues."""
        self.cut: LogCut | None = None
        """The newest cut that a kept record contains."""
        self.runs: list[_Run] = []
        self.holes: list[Hole] = []
        self._rest = self._find_runs()
        self.beside = stored.beside
        """Damage beside the records."""
        self.beside.frames += self._wrong_numbers
        self._choose()
        self._begin_at()
        if not self.runs:
            raise CorruptLog(1, "and all others are damaged: the log has no intact record")
        self._find_holes()

    @property
    def until(self) -> int:
        """The last record, kept or given up."""
        return max(self.runs[-1].last, self.holes[-1].last if self.holes else 0)

    def kept(self) -> Iterator[tuple[int, bytes]]:
        """Yield the kept records with their sequences."""
        runs = list(reversed(self.runs))
        number = 0
        for message in self._stored.messages():
            if message.problem is not None:
                continue
            while runs and number >= runs[-1].number + runs[-1].count:
                runs.pop()
            if not runs:
                return
            if number >= runs[-1].number:
                yield runs[-1].first + number - runs[-1].number, message.data
            number += 1

    def _find_runs(self) -> tuple[str, int, int]:
        """Find the runs; return the damage behind the last one, its bytes and messages."""
        run: _Run | None = None
        self._wrong_numbers = 0
        votes: list[int] = []
        number, size, count, link, why = 0, 0, 0, b"", ""
        for message in self._stored.messages():
            data = message.data
            if message.problem is not None:
                why, size, count = why or message.problem, size + len(data), count + 1
                link = b""
                continue
            if run is None or previous_of(data) != link:
                begins = mentions(data, (b'"CheckpointBegun"',))
                run = _Run(number, previous_of(data), link_of(data), begins, why, size)
                self.runs.append(run)
                votes, size, count, why = [], 0, 0, ""
            link = link_of(data)
            if len(votes) < _VOTES and message.sequence:
                votes.append(message.sequence - run.count)
                run.first = max(votes, key=votes.count)
            place = run.first + run.count
            self._wrong_numbers += message.sequence not in (0, place)
            if self._mark is not None and place == self._mark[0] and link != self._mark[1]:
                return "is not the one that was acknowledged", len(data), 1
            run.count += 1
            number += 1
            if mentions(data, (b'"LogCut"',)):
                for _, event in decode_record(run.last, data).events():
                    self.cut = event if isinstance(event, LogCut) else self.cut
        return why, size, count

    def _choose(self) -> None:
        """Keep the runs that fit together by their sequences; of two that do not, the longer."""
        kept: list[_Run] = []
        left: list[_Run] = []
        """Runs that were left out, before the next one that is kept."""
        for run in self.runs:
            if not run.count or run.first < 1:
                left.append(run)
                continue
            while kept and run.first <= kept[-1].last and run.count > kept[-1].count:
                left.append(kept.pop())
            if kept and run.first <= kept[-1].last:
                left.append(run)
                continue
            if kept and run.first == kept[-1].last + 1:
                # Nothing is missing between them: one of the two records is a wrong one.
                run.why = run.why or f"does not continue record {run.first - 1}"
                if kept[-1].count < run.count:
                    kept[-1].count -= 1
                    if not kept[-1].count:
                        left.append(kept.pop())
                else:
                    run.previous = run.link
                    run.without_first(1)
                    if not run.count:
                        left.append(run)
                        continue
            run.why = next((one.why for one in left if one.why), run.why)
            run.bytes += sum(one.bytes for one in left)
            left = []
            kept.append(run)
        self.runs = kept
        if left:
            why, size, count = self._rest
            why = next((one.why for one in left if one.why), why)
            self._rest = why, size, max(1, count)

    def _begin_at(self) -> None:
        """Find out where the log begins: at record 1, or where it was cut."""
        if self.cut is not None:
            self.begin, self.before = self.cut.first, bytes.fromhex(self.cut.link)
            self.runs = [run for run in self.runs if run.last >= self.begin]
            if self.runs and self.runs[0].first < self.begin:  # cut off, but still in the files
                self.runs[0].without_first(self.begin - self.runs[0].first)
        elif self.runs and self.runs[0].begins:
            self.begin, self.before = self.runs[0].first, self.runs[0].previous

    def _find_holes(self) -> None:
        expected = self.begin
        for run in self.runs:
            if run.first > expected:
                why = run.why or "is missing"
                self.holes.append(Hole(expected, run.first - 1, run.previous.hex(), run.bytes, why))
            expected = run.last + 1
        why, size, count = self._rest
        last = max(self._mark[0] if self._mark is not None else 0, expected + count - 1)
        if last >= expected:
            self.holes.append(Hole(expected, last, "", size, why or "is missing"))


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

    def _sizes(self, wanted: set[Position]) -> dict[Position, int]:
        """Return the payload bytes of messages."""
        found: dict[Position, int] = {}
        for sequence, data in self._plan.kept() if wanted else ():
            for index, event in decode_record(sequence, data).events():
                if isinstance(event, (MessagePublished, RetainedSnapshot, MessagesCarried)):
                    begin = sequence << INDEX_BITS | index
                    refs: Sequence[Position] = range(begin, begin + event.count)
                    if isinstance(event, MessagesCarried):
                        refs = from_runs(event.refs)
                    bytes_of = event.sizes
                    each = [bytes_of] * event.count if isinstance(bytes_of, int) else bytes_of
                    found.update(
                        (ref, size) for ref, size in zip(refs, each, strict=True) if ref in wanted
                    )
        return found

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
            [one for one in self._sessions if len(one) <= _NAME_LENGTH][:_NAMED],
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
