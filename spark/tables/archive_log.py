"""Logs in an archive, as the source reads them; needs neither Spark nor a JVM.

An archive is a directory with one directory for each node, ``node=<node>``; each of them is
complete and may be read alone. See ``docs/archive.md``.
"""

from collections.abc import Generator
from dataclasses import dataclass, field
from functools import lru_cache
from heapq import merge
from typing import Final

from eventstore.display import escaped
from spark.tables import parquet_files
from spark.tables.archive_ledger import (
    LEDGER_FILE,
    LEDGER_OBJECTS,
    MERGED,
    ArchiveDamaged,
    Ledger,
    NoArchive,
    needed_objects,
    object_name,
    object_numbers,
    parse_ledger,
    whole_lines,
)
from spark.tables.directories import Directory

NODE_DIRECTORY: Final = "node="


@dataclass(frozen=True, slots=True)
class ArchivedLog:
    """The records of one log in an archive, as of its look-up.

    The ledger with their places is read on each machine that needs it: its lines never change.
    """

    folder: Directory
    """The directory of the node."""
    stream: str
    first: int
    last: int
    size: int

    @property
    def borders(self) -> tuple[int, ...]:
        """Sequences of the first records of files."""
        return tuple(segment.first for segment in self._ledger().between(self.first, self.last))

    def read(self, first: int, last: int) -> Generator[tuple[int, bytes]]:
        """Yield (sequence, bytes) between two sequences, both included, in order, each once.

        Raises ArchiveDamaged, which names the file and the record.
        """
        first, last = max(first, self.first), min(last, self.last)
        for segment in self._ledger().between(first, last):
            parts = [
                parquet_files.read_file(self.folder, file.name, first, last, file.size)
                for file in segment.files
            ]
            try:
                yield from parts[0] if len(parts) == 1 else merge(*parts)
            finally:
                for part in parts:
                    part.close()

    def link_before(self, sequence: int) -> bytes | None:
        """Return the link of the record before a sequence at a file border, from the ledger."""
        for segment in self._ledger().between(sequence - 1, sequence):
            if segment.first == sequence:
                return bytes.fromhex(segment.previous)
            if segment.last == sequence - 1:
                return bytes.fromhex(segment.link)
        return None

    def around(self, time_ms: int) -> tuple[int, int]:
        """Return the range of records that contains the last one not later than a time.

        Only the file with times around it needs to be read.
        """
        for segment in reversed([*self._ledger().between(self.first, self.last)]):
            if segment.begins_ms <= time_ms:
                last = min(segment.last, self.last)
                return (last if segment.ends_ms <= time_ms else segment.first - 1), last
        return self.first - 1, self.first - 1

    def explain(self, _sequence: int) -> None:
        """Return None: an archive has all records between its first and its last."""

    def place(self, sequence: int) -> str:
        """Return the file that contains a record."""
        for segment in self._ledger().between(sequence, sequence):
            files = [parquet_files.file_text(self.folder, file.name) for file in segment.files]
            return f"file {' or '.join(files)} of the archive"
        return f"the archive {self.folder}"

    def _ledger(self) -> Ledger:
        return _ledger_up_to(self.folder, self.last)


def archived_logs(directory: str) -> list[ArchivedLog]:
    """Return the logs in an archive.

    ``directory`` is a path or a URI supported by Arrow, of an archive or of one node's part of it.
    Raises NoArchive, NoDirectory, ArchiveDamaged or LaterArchive.
    """
    folder = Directory(directory)
    log = _look(folder)
    if log is not None:
        return [log]
    parts = [folder.within(name) for name in folder.folders() if name.startswith(NODE_DIRECTORY)]
    logs = [log for part in parts if (log := _look(part)) is not None]
    if not logs:
        raise NoArchive(f"there is no archive in {folder}: 'foldmq spark archive' writes one")
    return logs


@dataclass(frozen=True, slots=True)
class LedgerContent:
    """The lines of a ledger in the directory of a node."""

    data: bytes
    objects: int = 0
    """Number of the next object."""
    recent: list[bytes] = field(default_factory=list)
    """Contents of the objects that the next merged one repeats."""
    name: str = LEDGER_FILE
    """The file or the directory of the objects, for messages."""

    def parsed(self, folder: Directory) -> Ledger | None:
        """Return the ledger; None if it is empty. Raises ArchiveDamaged or LaterArchive."""
        try:
            return parse_ledger(self.data, f"{folder}/{self.name}")
        except NoArchive:
            return None


def read_ledger(folder: Directory) -> LedgerContent:
    """Return the lines of the file, and those of the objects behind them.

    An archive that was copied to an object store has its first lines in the file. Raises
    NoDirectory, StoreUnavailable, or ArchiveDamaged if an object is missing or incomplete.
    """
    data = folder.read(LEDGER_FILE) or b""
    numbers = object_numbers(folder.files(LEDGER_OBJECTS))
    begin = 1 if whole_lines(data) else 0
    if not numbers:
        return LedgerContent(data, begin)
    needed = needed_objects(range(begin, numbers[-1] + 1))
    present = set(numbers)
    missing = next((number for number in needed if number not in present), None)
    if missing is not None:
        raise ArchiveDamaged(f"{folder}/{object_name(missing)} of the archive is missing")
    contents = folder.read_all(map(object_name, needed))
    for number, content in zip(needed, contents, strict=True):
        if not content or whole_lines(content) < len(content):  # a store has it whole or not
            raise ArchiveDamaged(f"{folder}/{object_name(number)} of the archive is incomplete")
    pairs = zip(needed, contents, strict=True)
    recent = [content for number, content in pairs if number % MERGED]
    lines = data[: whole_lines(data)] + b"".join(contents)
    return LedgerContent(lines, numbers[-1] + 1, recent, LEDGER_OBJECTS)


def ledger_of(folder: Directory) -> Ledger | None:
    """Return the ledger in the directory of a node; None if it does not exist, or is empty."""
    return read_ledger(folder).parsed(folder)


def _look(folder: Directory) -> ArchivedLog | None:
    ledger = ledger_of(folder)
    if ledger is None or not ledger.segments:
        return None
    return ArchivedLog(folder, ledger.stream, ledger.first, ledger.last, ledger.size)


@lru_cache(maxsize=16)
def _ledger_up_to(folder: Directory, last: int) -> Ledger:
    """Return the ledger of a directory that is known to reach a record."""
    ledger = ledger_of(folder)
    if ledger is None or ledger.last < last:
        raise NoArchive(
            f"the archive {folder} no longer has record {escaped(str(last))}: it was replaced, or "
            "is another directory on this machine"
        )
    return ledger
