"""The ledger of a log's archive: one JSON object per line, in a file or in objects of a store.

The first line names the log. Each other one is a *segment*: consecutive records, checked, in
Parquet files on disk. A line is written last: files without a line are not in the archive, so a
killed writer leaves nothing half done. The links of the segments form the chain of the log: a
ledger whose links do not match is damaged.

An object store cannot append to a file. There the lines that a run adds at once are an object of
their own, named by its number; it is created only if there is none, so that one of two runs fails.
An object whose number can be divided by :data:`MERGED` begins with the lines of the objects since
the last such one, which need not be read.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import orjson

from eventstore.format.records import GENESIS
from protocol.errors import FoldmqError

VERSION: Final = 1
LEDGER_FILE: Final = "_foldmq/ledger.jsonl"
"""Its path below the directory of a node."""
LEDGER_OBJECTS: Final = "_foldmq/ledger"
"""Directory of the objects below the directory of a node."""
MERGED: Final = 100
_OBJECT: Final = re.compile(r"(\d{12})\.jsonl")
_LINK: Final = re.compile("[0-9a-f]{64}")


class NoArchive(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """There is no archive at the given place."""

    exit_code = 66


class ArchiveDamaged(FoldmqError):  # noqa: N818
    """A file of an archive is damaged."""

    exit_code = 65


class LaterArchive(FoldmqError):  # noqa: N818
    """The archive was written by a later foldmq."""

    exit_code = 78


class ArchiveFile(NamedTuple):
    """A file of an archive."""

    name: str
    """Path relative to the directory of the node."""
    size: int
    """Bytes."""


@dataclass(frozen=True, slots=True)
class Segment:
    """Consecutive records, in one file; in several if the clock was set back over midnight."""

    first: int
    """Stream sequence of the first record."""
    last: int
    previous: str
    """Link of the record before the first one, in hexadecimal."""
    link: str
    """Link of the last record."""
    begins_ms: int
    """The earliest time of its records, Unix time in milliseconds."""
    ends_ms: int
    size: int
    """Bytes of the records in the log."""
    files: tuple[ArchiveFile, ...]

    def line(self) -> bytes:
        """Return its line of the ledger."""
        fields: dict[str, Any] = {name: getattr(self, name) for name in _KINDS}
        return orjson.dumps({**fields, "files": [list(file) for file in self.files]}) + b"\n"


_KINDS: Final[dict[str, type]] = {
    "first": int,
    "last": int,
    "previous": str,
    "link": str,
    "begins_ms": int,
    "ends_ms": int,
    "size": int,
}
"""The fields of a segment without its files."""


@dataclass(frozen=True, slots=True)
class Ledger:
    """The contents of the archive of one log."""

    stream: str
    """Name of the log."""
    segments: tuple[Segment, ...] = ()
    """In order, without gaps."""

    @property
    def first(self) -> int:
        """Stream sequence of the first record, 1 if there is none."""
        return self.segments[0].first if self.segments else 1

    @property
    def last(self) -> int:
        """Stream sequence of the last record, 0 if there is none."""
        return self.segments[-1].last if self.segments else 0

    @property
    def link(self) -> str:
        """Link of the last record, in hexadecimal."""
        return self.segments[-1].link if self.segments else GENESIS.hex()

    @property
    def size(self) -> int:
        """Bytes of the records in the log."""
        return sum(segment.size for segment in self.segments)

    def between(self, first: int, last: int) -> Iterator[Segment]:
        """Yield the segments with records between two sequences, both included."""
        at = bisect_left(self.segments, first, key=lambda segment: segment.last)
        while at < len(self.segments) and self.segments[at].first <= last:
            yield self.segments[at]
            at += 1

    def head(self) -> bytes:
        """Return the first line."""
        return orjson.dumps({"archive": VERSION, "stream": self.stream}) + b"\n"


def parse_ledger(data: bytes, where: object) -> Ledger:
    """Return the ledger in a file; an incomplete last line is left out.

    Raises ArchiveDamaged, LaterArchive, or NoArchive if even its first line is missing; ``where``
    names the file in the message.
    """
    lines = data[: data.rfind(b"\n") + 1].splitlines()
    if not lines:
        raise NoArchive(f"{where} is empty: nothing is archived yet")
    head = _object(lines[0], where, 1)
    if head.get("archive") != VERSION:
        raise LaterArchive(
            f"{where} has format {str(head.get('archive'))[:20]}, this foldmq reads format "
            f"{VERSION}: use the foldmq that wrote it, or a later one"
        )
    stream = head.get("stream")
    if not isinstance(stream, str):
        raise ArchiveDamaged(f"{where} does not name its log")
    segments: list[Segment] = []
    for number, line in enumerate(lines[1:], 2):
        segment = _segment(_object(line, where, number), where, number)
        if segments and (
            segment.first != segments[-1].last + 1 or segment.previous != segments[-1].link
        ):
            raise ArchiveDamaged(f"{where}, line {number} does not continue the one before")
        segments.append(segment)
    return Ledger(stream, tuple(segments))


def object_name(number: int) -> str:
    """Return the path of an object of the ledger below the directory of a node."""
    return f"{LEDGER_OBJECTS}/{number:012}.jsonl"


def object_numbers(names: Iterable[str]) -> list[int]:
    """Return the numbers of the objects of a ledger among files, in order."""
    matches = (_OBJECT.fullmatch(name.removeprefix(f"{LEDGER_OBJECTS}/")) for name in names)
    return sorted(int(match[1]) for match in matches if match is not None)


def needed_objects(numbers: Iterable[int]) -> list[int]:
    """Return the numbers of the objects that have all lines together, in order."""
    ordered = sorted(numbers)
    merged = ordered[-1] - ordered[-1] % MERGED if ordered else 0
    return [number for number in ordered if number % MERGED == 0 or number > merged]


def whole_lines(data: bytes) -> int:
    """Return the number of bytes of a ledger's file that are complete lines."""
    return data.rfind(b"\n") + 1


def _object(line: bytes, where: object, number: int) -> dict[str, Any]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ArchiveDamaged(f"{where}, line {number} cannot be read")
    return value


def _segment(line: dict[str, Any], where: object, number: int) -> Segment:
    try:
        fields = {name: line[name] for name in _KINDS}
        files = tuple(ArchiveFile(str(name), int(size)) for name, size in line["files"])
    except (KeyError, TypeError, ValueError):
        fields, files = {}, ()
    fits = all(type(value) is _KINDS[name] for name, value in fields.items())
    if not files or not fits or not 1 <= fields["first"] <= fields["last"] or not _links(fields):
        raise ArchiveDamaged(f"{where}, line {number} is not a segment")
    return Segment(**fields, files=files)


def _links(fields: dict[str, Any]) -> bool:
    return all(_LINK.fullmatch(fields[name]) is not None for name in ("previous", "link"))
