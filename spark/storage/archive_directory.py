"""Writes the directory of a node in an archive; one process at a time.

Files come from a staging directory. They are synced, moved to their place and, when all that is
on disk, told in the ledger, which is synced too: from then on they are in the archive, and a power
cut does not change that. Whatever a process leaves behind that is killed before is removed by the
next one, which knows by the staging directory that there may be something.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import socket
import uuid
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import TYPE_CHECKING, Final

from eventstore.display import escaped
from eventstore.errors import CorruptLog
from protocol.errors import FoldmqError
from spark.runtime import NotWritable, OutOfDisk
from spark.storage.directories import Directory
from spark.storage.ledger import (
    LEDGER_FILE,
    ArchiveFile,
    Ledger,
    Segment,
    parse_ledger,
    whole_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from spark.storage.parquet_files import RecordRun

_LOCK: Final = "_foldmq/lock"
_STAGING: Final = "_staging"
_FILE: Final = re.compile(r"\d{12,}-\d{12,}\.parquet")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class ArchiveBusy(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """Another process writes the archive."""

    exit_code = 75


@dataclass(frozen=True, slots=True)
class ArchiveExtent:
    """The extent of a log in an archive, and what a run added to it."""

    stream: str
    where: str
    """The directory."""
    through: int
    """The last record that is in it, 0 if there is none."""
    link: str
    """The link of that record, in hexadecimal."""
    ends_ms: int
    """Time of the last records, Unix time in milliseconds."""
    records: int = 0
    """How many were added."""
    size: int = 0
    """Their bytes."""
    files: int = 0
    """How many files they take."""
    file_bytes: int = 0


class ArchiveWriter:
    """Adds files to the part of an archive that belongs to one log. See :func:`open_writer`."""

    def __init__(self, path: Path, ledger: Ledger, staging: Path) -> None:
        self.path = path
        self.ledger = ledger
        self.staging = staging
        """A directory of this process for what is not in the archive yet."""
        self.unsure = False
        """Adding failed: there may be files in their place that are not in the archive."""
        self._added: list[Segment] = []

    @property
    def outcome(self) -> ArchiveExtent:
        """What the archive has, and what was added since it was opened; it is on disk."""
        ledger, added = self.ledger, self._added
        files = [file for segment in added for file in segment.files]
        return ArchiveExtent(
            ledger.stream,
            str(self.path),
            ledger.last,
            ledger.link,
            ledger.segments[-1].ends_ms if ledger.segments else 0,
            sum(one.last - one.first + 1 for one in added),
            sum(one.size for one in added),
            len(files),
            sum(file.size for file in files),
        )

    def add(self, runs: Iterable[RecordRun]) -> list[Segment]:
        """Take files into the archive: the runs are all that is in them, checked.

        The names of the files are relative to the staging directory. When this returns they are
        on disk and in the ledger. Raises CorruptLog when they do not continue what is there,
        OutOfDisk or NotWritable.
        """
        grouped = _grouped(runs)
        _check_chain(self.ledger, [run for group in grouped for run in group])
        with write_error(self.path):
            self.unsure = True
            segments = [self._moved(group) for group in grouped]
            for folder in {Path(file.name).parent for one in segments for file in one.files}:
                sync_to_disk(self.path / folder)
            sync_to_disk(self.path)
            self._tell(segments)
            self.unsure = False
        self.ledger = Ledger(self.ledger.stream, (*self.ledger.segments, *segments))
        self._added += segments
        return segments

    def _moved(self, group: Sequence[RecordRun]) -> Segment:
        """Move the files of one segment to their place, synced."""
        files: list[ArchiveFile] = []
        for name in dict.fromkeys(run.file for run in group):
            held = [run for run in group if run.file == name]
            staged = self.staging / name
            sync_to_disk(staged)
            place = Path(_date(name)) / f"{held[0].first:012}-{held[-1].last:012}.parquet"
            (self.path / place).parent.mkdir(exist_ok=True)
            files.append(ArchiveFile(str(place), staged.stat().st_size))
            staged.replace(self.path / place)
        return Segment(
            group[0].first,
            group[-1].last,
            group[0].previous,
            group[-1].link,
            min(run.begins_ms for run in group),
            max(run.ends_ms for run in group),
            sum(run.size for run in group),
            tuple(files),
        )

    def _tell(self, segments: Iterable[Segment]) -> None:
        """Write the lines of the ledger; they are on disk when this returns, or not there."""
        lines = b"".join(segment.line() for segment in segments)
        with (self.path / LEDGER_FILE).open("r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                _write_all(file.fileno(), lines)
                os.fsync(file.fileno())
            except OSError:
                # What could not be synced must not look as if it were.
                file.truncate(end)
                raise


@contextmanager
def open_writer(directory: Path, stream: str, node: str) -> Iterator[ArchiveWriter]:
    """Open the part of an archive that belongs to a log, for this process alone.

    It is made when it is not there; what a killed process left behind is removed, and in the end
    what this one has not brought into the archive. Raises ArchiveBusy, ArchiveDamaged,
    LaterArchive, OutOfDisk or NotWritable.
    """
    path = directory / node
    with ExitStack() as stack:
        with write_error(path):
            make_directory(path / Path(LEDGER_FILE).parent)
            stack.enter_context(_alone(path))
            ledger = _mended(path, stream)
            writer = ArchiveWriter(path, ledger, _staging(path, ledger))
        stack.callback(_clear, writer)
        yield writer


@contextmanager
def write_error(path: Path) -> Iterator[None]:
    """Return in one line why an archive cannot be written."""
    try:
        yield
    except OSError as error:
        if error.errno in _FULL:
            raise no_room(path) from None
        why = error.strerror or type(error).__name__
        what = escaped(str(error.filename or path), 4096)
        if error.errno == errno.EIO:
            raise OutOfDisk(f"the disk of the archive {escaped(str(path), 4096)} fails") from None
        raise NotWritable(f"the archive cannot be written: {what}: {why}") from None


def no_room(path: Path) -> OutOfDisk:
    """Return the error for a full disk of an archive."""
    return OutOfDisk(
        f"no space left for the archive {escaped(str(path), 4096)}: what is in it stays; free some "
        "space, then go on"
    )


def make_directory(path: Path) -> None:
    """Make a directory and its parents durably: they survive a power cut.

    Existing ones are synced as well: the process that made them may have been killed before it did.
    """
    path.mkdir(parents=True, exist_ok=True)
    device = path.stat().st_dev
    for one in path.parents:
        if one.stat().st_dev != device:
            break  # what is mounted there was there before
        if os.access(one, os.W_OK):  # else nothing was made in it
            sync_to_disk(one)


def sync_to_disk(path: Path) -> None:
    """Sync a file or directory to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep others from writing; the lock goes with this process, however it ends."""
    with (path / _LOCK).open("a+", encoding="utf-8") as lock:
        try:
            flock(lock, LOCK_EX | LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            holder = escaped(lock.read(200).strip()) or "another process"
            raise ArchiveBusy(
                f"the archive {escaped(str(path), 4096)} is being written by {holder}: try again "
                "when it has ended"
            ) from None
        lock.truncate(0)
        lock.write(f"process {os.getpid()} on {socket.gethostname()}")
        lock.flush()
        yield


def _mended(path: Path, stream: str) -> Ledger:
    """Return the ledger, without a line that was only begun; write one if there is none."""
    file = path / LEDGER_FILE
    data = file.read_bytes() if file.exists() else b""
    end = whole_lines(data)
    if not end:
        head = Ledger(stream)
        with file.open("wb", buffering=0) as made:
            _write_all(made.fileno(), head.head())
            os.fsync(made.fileno())
        sync_to_disk(file.parent)
        return head
    ledger = parse_ledger(data, f"{Directory(str(path))}/{LEDGER_FILE}")
    if end < len(data):
        os.truncate(file, end)
    sync_to_disk(file)  # the process that wrote the last line may have been killed before it did
    sync_to_disk(file.parent)
    return ledger


def _staging(path: Path, ledger: Ledger) -> Path:
    """Remove what another process left behind, and make a staging directory of our own.

    It has a name that no other process ever used: a Spark that outlived its driver may still
    write into its own.
    """
    staging = path / _STAGING
    if staging.exists():
        _sweep(path, ledger)
        shutil.rmtree(staging, ignore_errors=True)
    own = staging / uuid.uuid4().hex
    own.mkdir(parents=True)
    sync_to_disk(path)  # the next one must find it if any file is moved
    return own


def _sweep(path: Path, ledger: Ledger) -> None:
    """Remove the files of ours that no line of the ledger tells of; that is on disk then."""
    told = {file.name for segment in ledger.segments for file in segment.files}
    for folder in path.glob("date=*"):
        files = [file for file in folder.glob("*.parquet") if _FILE.fullmatch(file.name)]
        left = [file for file in files if f"{folder.name}/{file.name}" not in told]
        for file in left:
            file.unlink()
        if left:
            sync_to_disk(folder)


def _clear(writer: ArchiveWriter) -> None:
    """Remove what is not in the archive. What cannot be removed now is by the next process."""
    path = writer.path
    with suppress(OSError, FoldmqError):
        if writer.unsure:  # the ledger is asked: a line that was to be taken back may be there
            _sweep(path, parse_ledger((path / LEDGER_FILE).read_bytes(), path))
        shutil.rmtree(path / _STAGING, ignore_errors=True)
        return
    shutil.rmtree(writer.staging, ignore_errors=True)


def _grouped(runs: Iterable[RecordRun]) -> list[list[RecordRun]]:
    """Return the runs in order, those together whose files lie in one another.

    That is so when the clock was set back over midnight: a file is of one day.
    """
    ordered = sorted(runs, key=lambda run: run.first)
    ends: dict[str, int] = {}
    for run in ordered:
        ends[run.file] = run.last
    groups: list[list[RecordRun]] = []
    reach = 0
    for run in ordered:
        if run.first > reach:
            groups.append([])
        groups[-1].append(run)
        reach = max(reach, ends[run.file])
    return groups


def _check_chain(ledger: Ledger, runs: Iterable[RecordRun]) -> None:
    """Raise CorruptLog unless runs continue a ledger, each the one before."""
    last, link = ledger.last, ledger.link if ledger.segments else None
    for run in runs:
        if last and run.first != last + 1:
            raise CorruptLog(last + 1, f"is missing: record {run.first} follows")
        if link is not None and run.previous != link:
            raise CorruptLog(run.first, f"does not continue record {last}")
        last, link = run.last, run.link


def _date(name: str) -> str:
    return Path(name).parent.name


def _write_all(descriptor: int, data: bytes) -> None:
    left = memoryview(data)
    while left:
        left = left[os.write(descriptor, left) :]
