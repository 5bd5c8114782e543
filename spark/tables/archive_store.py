"""Writes the part of an archive that belongs to a log to an S3 bucket; without a lock.

Files have names of their own for each run, so that no run overwrites those of another one. They are
uploaded to their place, read again, and then entered in the ledger by an object that is created
only if there is none: of two runs that continue the same ledger the second one fails, and what it
uploaded is not in the archive.

A file that is not in the ledger can never be entered any more once the ledger covers its first
record. Only such files are removed, so that a run takes nothing from another one. Each run has a
*marker* while it works; where there is another run's, that one may have been killed, and all files
are looked through at the end.
"""

import re
import time
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from protocol.errors import FoldmqError
from spark.tables.archive_ledger import (
    LEDGER_OBJECTS,
    MERGED,
    ArchiveFile,
    Ledger,
    Segment,
    object_name,
    object_numbers,
)
from spark.tables.archive_log import LedgerContent, read_ledger
from spark.tables.archive_writer import ArchiveBusy, ArchiveWriter, segment_of
from spark.tables.directories import Directory, directory_text
from spark.tables.object_store import ObjectStore, no_conditions
from spark.tables.parquet_files import RecordRun

MARKERS: Final = "_staging"
_FILE: Final = re.compile(r"date=[^/]*/(\d{12,})-\d{12,}-([0-9a-f]{12})-\d+\.parquet")
_FORGOTTEN_S: Final = 86_400
"""Age in seconds of a marker from which on its run has ended."""


class StoreWriter(ArchiveWriter):
    """Adds files to a bucket. See :func:`open_store_writer`."""

    def __init__(
        self, folder: Directory, ledger: Ledger, content: LedgerContent, staging: Path
    ) -> None:
        super().__init__(folder, directory_text(folder.where), ledger, staging)
        self.run = uuid.uuid4().hex[:12]
        """Part of the names of its files."""
        self._store = ObjectStore.open(folder)
        self._next = content.objects
        self._recent = [*content.recent]
        self._working = False

    def begin(self) -> None:
        """Announce that files will follow. Raises NotWritable, StoreUnavailable or ArchiveBusy."""
        if self._working:
            return
        if not self._store.create(self._marker, b""):
            raise no_conditions(self.folder)  # nobody else has this name
        self._working = True
        if self._store.try_to_create(self._marker, b""):
            raise no_conditions(self.folder)
        if not self._next:
            self._create(self.ledger.head())

    def _keep(self, groups: Sequence[Sequence[RecordRun]]) -> list[Segment]:
        """Enter files, which are in their place, in the ledger.

        Raises ArchiveBusy if another run has continued it, NotWritable or StoreUnavailable.
        """
        names = [[*dict.fromkeys(run.file for run in group)] for group in groups]
        sizes = iter(self.folder.sizes(name for group in names for name in group))
        segments = [
            segment_of(group, [ArchiveFile(name, next(sizes)) for name in files])
            for group, files in zip(groups, names, strict=True)
        ]
        self._create(b"".join(segment.line() for segment in segments))
        return segments

    def _create(self, lines: bytes) -> None:
        """Create the next object of the ledger."""
        number = self._next
        merged = number > 0 and number % MERGED == 0
        self.unsure = True
        created = self._store.create(
            object_name(number), b"".join([*self._recent, lines]) if merged else lines
        )
        self.unsure = False
        if not created:
            raise self.busy()
        self._next = number + 1
        if merged:
            self._recent = []
        elif number:
            self._recent.append(lines)

    def busy(self) -> ArchiveBusy:
        """Return the error for a ledger that another run has continued."""
        return ArchiveBusy(
            f"another run continued the archive {self.folder} meanwhile: nothing is lost; run "
            "one at a time"
        )

    def is_overtaken(self) -> bool:
        """Return whether another run has continued the ledger."""
        if not self._working or self.unsure:
            return False
        numbers = object_numbers(self.folder.files(LEDGER_OBJECTS))
        return bool(numbers) and numbers[-1] >= self._next

    def finish(self) -> None:
        """Remove files that cannot get into the ledger any more, and the marker of this run."""
        if not self._working:
            return
        markers = self.folder.files(MARKERS)
        if markers.keys() - {self._marker}:
            files: Iterable[str] = self.folder.files()
        else:
            dates = {
                file.name.partition("/")[0] for segment in self._added for file in segment.files
            }
            files = [name for date in dates for name in self.folder.files(date)]
        in_ledger = self._in_ledger()
        dead = [
            name
            for name in files
            if (match := _FILE.fullmatch(name)) is not None
            and name not in in_ledger
            and int(match[1]) <= self.ledger.last
        ]
        old = time.time() - _FORGOTTEN_S
        ended = [name for name, marker in markers.items() if marker.modified_s < old]
        self._store.delete([*dead, *ended, self._marker])

    def abandon(self) -> None:
        """Remove the files of this run that are not in the ledger; the marker remains.

        Spark's workers may still upload others.
        """
        if not self._working or self.unsure:
            return
        in_ledger = self._in_ledger()
        self._store.delete(
            name
            for name in self.folder.files()
            if (match := _FILE.fullmatch(name)) is not None
            and match[2] == self.run
            and name not in in_ledger
        )

    def _in_ledger(self) -> set[str]:
        return {file.name for segment in self.ledger.segments for file in segment.files}

    @property
    def _marker(self) -> str:
        return f"{MARKERS}/{self.run}"


def file_name(date: str, first: int, last: int, run: str, attempt: int) -> str:
    """Return the path of a file of records; ``attempt`` is a number of the task that writes it."""
    return f"date={date}/{first:012}-{last:012}-{run}-{attempt}.parquet"


@contextmanager
def open_store_writer(root: Directory, stream: str, node: str) -> Iterator[StoreWriter]:
    """Open the part of an archive in a bucket that belongs to a log.

    It writes nothing before :meth:`StoreWriter.begin`. Raises NoObjectStore, NoDirectory,
    StoreUnavailable, ArchiveDamaged or LaterArchive; and ArchiveBusy in place of another error if
    another run has continued the archive. What cannot be removed at the end remains.
    """
    folder = root.within(node)
    content = read_ledger(folder)
    ledger = content.parsed(folder) or Ledger(stream)
    with TemporaryDirectory(prefix="foldmq-archive-", ignore_cleanup_errors=True) as staging:
        writer = StoreWriter(folder, ledger, content, Path(staging))
        try:
            yield writer
        except BaseException as error:
            overtaken = False
            with suppress(FoldmqError):
                overtaken = isinstance(error, Exception) and writer.is_overtaken()
                writer.abandon()
            if overtaken:
                raise writer.busy() from None
            raise
        with suppress(FoldmqError):
            writer.finish()
