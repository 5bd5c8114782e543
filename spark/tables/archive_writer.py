"""Adds files to the part of an archive that belongs to one log.

Whatever the archive is stored in, files are checked before they are added, and are in the archive
when the ledger names them.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eventstore.errors import CorruptLog
from protocol.errors import FoldmqError
from spark.tables.archive_ledger import ArchiveFile, Ledger, Segment
from spark.tables.directories import Directory
from spark.tables.parquet_files import RecordRun


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


class ArchiveWriter(ABC):
    """Adds files to the part of an archive that belongs to one log."""

    def __init__(self, folder: Directory, where: str, ledger: Ledger, staging: Path) -> None:
        self.folder = folder
        """The directory of the node."""
        self.where = where
        """Its name for the broker, without secrets."""
        self.ledger = ledger
        self.staging = staging
        """A directory of this process on this machine."""
        self.unsure = False
        """Whether adding failed: files may be in place or in the ledger."""
        self._added: list[Segment] = []

    @property
    def outcome(self) -> ArchiveExtent:
        """The extent of the archive, and the records added since it was opened; all durable."""
        ledger, added = self.ledger, self._added
        files = [file for segment in added for file in segment.files]
        return ArchiveExtent(
            ledger.stream,
            self.where,
            ledger.last,
            ledger.link,
            ledger.segments[-1].ends_ms if ledger.segments else 0,
            sum(part.last - part.first + 1 for part in added),
            sum(part.size for part in added),
            len(files),
            sum(file.size for file in files),
        )

    def add(self, runs: Iterable[RecordRun]) -> list[Segment]:
        """Take files into the archive: the runs are their whole content, checked.

        When this returns they are durable and in the ledger. Raises CorruptLog if they do not
        continue the archive, and the errors of writing to it.
        """
        grouped = _grouped(runs)
        _check_chain(self.ledger, [run for group in grouped for run in group])
        segments = self._keep(grouped)
        self.ledger = Ledger(self.ledger.stream, (*self.ledger.segments, *segments))
        self._added += segments
        return segments

    @abstractmethod
    def _keep(self, groups: Sequence[Sequence[RecordRun]]) -> list[Segment]:
        """Make the files of each group a segment, and enter all of them in the ledger."""


def segment_of(group: Sequence[RecordRun], files: Iterable[ArchiveFile]) -> Segment:
    """Return the segment of some runs in these files."""
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
