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
from fcntl import LOCK_EX, LOCK_NB, flock
from pathlib import Path
from typing import Final

from eventstore.display import escaped
from protocol.errors import FoldmqError
from spark.runtime.errors import NotWritable, OutOfDisk
from spark.tables.archive_ledger import (
    LEDGER_FILE,
    LEDGER_OBJECTS,
    ArchiveFile,
    Ledger,
    Segment,
    parse_ledger,
    whole_lines,
)
from spark.tables.archive_writer import ArchiveBusy, ArchiveWriter, segment_of
from spark.tables.directories import Directory
from spark.tables.parquet_files import RecordRun

_LOCK: Final = "_foldmq/lock"
_STAGING: Final = "_staging"
_FILE: Final = re.compile(r"\d{12,}-\d{12,}\.parquet")
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)


class DirectoryWriter(ArchiveWriter):
    """Adds files to a directory. See :func:`open_writer`."""

    def __init__(self, path: Path, ledger: Ledger, staging: Path) -> None:
        super().__init__(Directory(str(path)), str(path), ledger, staging)
        self.path = path

    def _keep(self, groups: Sequence[Sequence[RecordRun]]) -> list[Segment]:
        """Move files, whose names are relative to the staging directory, to their place.

        Raises OutOfDisk or NotWritable.
        """
        with write_error(self.path):
            self.unsure = True
            segments = [self._moved(group) for group in groups]
            for folder in {
                Path(file.name).parent for segment in segments for file in segment.files
            }:
                sync_to_disk(self.path / folder)
            sync_to_disk(self.path)
            self._append_ledger(segments)
            self.unsure = False
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
        return segment_of(group, files)

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
def open_writer(directory: Path, stream: str, node: str) -> Iterator[DirectoryWriter]:
    """Open the part of an archive that belongs to a log, for this process alone.

    It is created if it does not exist; leftovers of a killed process are removed, and at the end
    all files of this one that are not in the archive. Raises ArchiveBusy, ArchiveDamaged,
    LaterArchive, OutOfDisk or NotWritable.
    """
    path = directory / node
    if (path / LEDGER_OBJECTS).exists():
        raise NotWritable(
            f"the archive {escaped(str(path), 4096)} is a copy from an object store, which can be "
            "read, not continued: use another directory"
        )
    with ExitStack() as stack:
        with write_error(path):
            make_directory(path / Path(LEDGER_FILE).parent)
            stack.enter_context(_alone(path))
            ledger = _repaired_ledger(path, stream)
            writer = DirectoryWriter(path, ledger, _staging(path, ledger))
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
    for parent in path.parents:
        if parent.stat().st_dev != device:
            break  # a mount point existed before
        if os.access(parent, os.W_OK):  # otherwise nothing was created in it
            sync_to_disk(parent)


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
    named = {file.name for segment in ledger.segments for file in segment.files}
    for folder in path.glob("date=*"):
        files = [file for file in folder.glob("*.parquet") if _FILE.fullmatch(file.name)]
        leftovers = [file for file in files if f"{folder.name}/{file.name}" not in named]
        for file in leftovers:
            file.unlink()
        if leftovers:
            sync_to_disk(folder)


def _clear(writer: DirectoryWriter) -> None:
    """Remove files that are not in the archive; the next process removes those that remain."""
    path = writer.path
    with suppress(OSError, FoldmqError):
        if writer.unsure:  # the ledger decides: a line to be removed may still be there
            _sweep(path, parse_ledger((path / LEDGER_FILE).read_bytes(), path))
        shutil.rmtree(path / _STAGING, ignore_errors=True)
        return
    shutil.rmtree(writer.staging, ignore_errors=True)


def _date(name: str) -> str:
    return Path(name).parent.name


def _write_all(descriptor: int, data: bytes) -> None:
    remaining = memoryview(data)
    while remaining:
        remaining = remaining[os.write(descriptor, remaining) :]
