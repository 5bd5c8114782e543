"""Writes the directory of a node in an archive; one process at a time.

Files come from a staging directory. They are synced, moved to their place and, when all of that is
on disk, entered in the ledger, which is synced too: from then on they are in the archive, and
survive a power cut. Leftovers of a killed process are removed by the next one, which recognizes by
the staging directory that there may be some.
"""

import errno
import os
import re
import shutil
import socket
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

from eventstore.display import escaped
from eventstore.errors import CorruptLog
from protocol.errors import FoldmqError
from spark.runtime.errors import NotWritable, OutOfDisk
from spark.tables.archive_ledger import (
    LEDGER_FILE,
    ArchiveFile,
    Ledger,
    Segment,
    parse_ledger,
    whole_lines,
)
from spark.tables.directories import Directory
from spark.tables.parquet_files import RecordRun

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
    """The last archived record, 0 if there is none."""
    link: str
    """The link of that record, in hexadecimal."""
    ends_ms: int
    """Time of the last records, Unix time in milliseconds."""
    records: int = 0
    """Number of added records."""
    size: int = 0
    """Bytes of the added records."""
    files: int = 0
    """Number of added files."""
    file_bytes: int = 0


class ArchiveWriter:
    """Adds files to the part of an archive that belongs to one log. See :func:`open_writer`."""

    def __init__(self, path: Path, ledger: Ledger, staging: Path) -> None:
        self.path = path
        self.ledger = ledger
        self.staging = staging
        """A directory of this process for files that are not in the archive yet."""
        self.unsure = False
        """Whether adding failed: there may be files in place that are not in the archive."""
        self._added: list[Segment] = []

    @property
    def outcome(self) -> ArchiveExtent:
        """The extent of the archive, and the records added since it was opened; all on disk."""
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
        """Take files into the archive: the runs are their whole content, checked.

        The names of the files are relative to the staging directory. When this returns they are on
        disk and in the ledger. Raises CorruptLog if they do not continue the archive, OutOfDisk or
        NotWritable.
        """
        grouped = _grouped(runs)
        _check_chain(self.ledger, [run for group in grouped for run in group])
        with write_error(self.path):
            self.unsure = True
            segments = [self._moved(group) for group in grouped]
            for folder in {Path(file.name).parent for one in segments for file in one.files}:
                sync_to_disk(self.path / folder)
            sync_to_disk(self.path)
            self._append_ledger(segments)
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

    def _append_ledger(self, segments: Iterable[Segment]) -> None:
        """Write the lines of the ledger; when this returns they are on disk, or removed."""
        lines = b"".join(segment.line() for segment in segments)
        with (self.path / LEDGER_FILE).open("r+b", buffering=0) as file:
            end = file.seek(0, os.SEEK_END)
            try:
                _write_all(file.fileno(), lines)
                os.fsync(file.fileno())
            except OSError:
                # Data that could not be synced must not look as if it were.
                file.truncate(end)
                raise


@contextmanager
def open_writer(directory: Path, stream: str, node: str) -> Iterator[ArchiveWriter]:
    """Open the part of an archive that belongs to a log, for this process alone.

    It is created if it does not exist; leftovers of a killed process are removed, and at the end
    all files of this one that are not in the archive. Raises ArchiveBusy, ArchiveDamaged,
    LaterArchive, OutOfDisk or NotWritable.
    """
    path = directory / node
    with ExitStack() as stack:
        with write_error(path):
            make_directory(path / Path(LEDGER_FILE).parent)
            stack.enter_context(_alone(path))
            ledger = _repaired_ledger(path, stream)
            writer = ArchiveWriter(path, ledger, _staging(path, ledger))
        stack.callback(_clear, writer)
        yield writer


@contextmanager
def write_error(path: Path) -> Iterator[None]:
    """Raise NotWritable or OutOfDisk, in one line, for errors of writing an archive."""
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
        f"no space left for the archive {escaped(str(path), 4096)}: its contents are intact; free "
        "some space, then continue"
    )


def make_directory(path: Path) -> None:
    """Make a directory and its parents durably: they survive a power cut.

    Existing ones are synced as well: the process that made them may have been killed before.
    """
    path.mkdir(parents=True, exist_ok=True)
    device = path.stat().st_dev
    for one in path.parents:
        if one.stat().st_dev != device:
            break  # a mount point existed before
        if os.access(one, os.W_OK):  # otherwise nothing was created in it
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
    """Lock out other writers; the lock ends with this process, however it ends."""
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


def _repaired_ledger(path: Path, stream: str) -> Ledger:
    """Return the ledger, without an incomplete last line; create it if there is none."""
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
    sync_to_disk(file)  # the process that wrote the last line may have been killed before it synced
    sync_to_disk(file.parent)
    return ledger


def _staging(path: Path, ledger: Ledger) -> Path:
    """Remove leftovers of another process, and make a new staging directory.

    Its name was never used by another process: a Spark that outlived its driver may still write
    into its own.
    """
    staging = path / _STAGING
    if staging.exists():
        _sweep(path, ledger)
        shutil.rmtree(staging, ignore_errors=True)
    own = staging / uuid.uuid4().hex
    own.mkdir(parents=True)
    sync_to_disk(path)  # the next process must find it if any file is moved
    return own


def _sweep(path: Path, ledger: Ledger) -> None:
    """Remove files of foldmq that are not in the ledger, durably."""
    told = {file.name for segment in ledger.segments for file in segment.files}
    for folder in path.glob("date=*"):
        files = [file for file in folder.glob("*.parquet") if _FILE.fullmatch(file.name)]
        left = [file for file in files if f"{folder.name}/{file.name}" not in told]
        for file in left:
            file.unlink()
        if left:
            sync_to_disk(folder)


def _clear(writer: ArchiveWriter) -> None:
    """Remove files that are not in the archive; the next process removes those that remain."""
    path = writer.path
    with suppress(OSError, FoldmqError):
        if writer.unsure:  # the ledger decides: a line to be removed may still be there
            _sweep(path, parse_ledger((path / LEDGER_FILE).read_bytes(), path))
        shutil.rmtree(path / _STAGING, ignore_errors=True)
        return
    shutil.rmtree(writer.staging, ignore_errors=True)


def _grouped(runs: Iterable[RecordRun]) -> list[list[RecordRun]]:
    """Return the runs in order, grouped if the sequences of their files overlap.

    That happens if the clock was set back over midnight: a file covers one day.
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
    """Raise CorruptLog unless the runs continue the ledger, and each the one before."""
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
