"""The files of a backup: segments with records, and a manifest that names them.

A segment has, for each record, its sequence and its size (8 and 4 bytes, big-endian) and its bytes.
In an encrypted backup it is sealed, behind a magic number and the mark of the key (8 bytes each).
Segments never change; the manifest is replaced, atomically, when those of a backup are on disk. So
a backup that was interrupted leaves the previous one as it was. In a stream, a tar archive, the
manifest comes last.
"""

from __future__ import annotations

import errno
import io
import os
import struct
import tarfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final, Protocol

import orjson

from eventstore.datadir import DataDir
from eventstore.encryption import NotOpened, StoreKey
from eventstore.errors import (
    CorruptLog,
    DataDirError,
    DiskFull,
    EventStoreError,
    NoLog,
    StoreKeyError,
)

MANIFEST: Final = "backup.json"
_FORMAT: Final = 1
_FORMAT_SEALED: Final = 2
_SEGMENT: Final = ".records"
_FRAME: Final = struct.Struct(">QI")
SEALED_SEGMENT: Final = b"FMQBAKS2"
_MARK_END: Final = len(SEALED_SEGMENT) + 8
SEGMENT_BYTES: Final = 8 * 1024 * 1024
"""Size from which a segment is complete; a smaller last one is replaced by a longer one."""


class BadBackup(EventStoreError):  # noqa: N818 - as in eventstore.errors
    """A backup is damaged, incomplete or of a later foldmq."""

    exit_code = 65


@dataclass(slots=True)
class BackedUpLog:
    """One log in a backup."""

    log: str
    first: int
    """Sequence of its first record."""
    before: str
    """Link that the first record continues, in hexadecimal."""
    last: int
    """Sequence of its last record."""
    link: str
    """Link of the last record, in hexadecimal."""
    segments: list[str] = field(default_factory=list)


@dataclass(slots=True)
class Manifest:
    """The contents of a backup."""

    node: str
    """The node, or the cluster, whose logs these are."""
    several: int
    """Number of its logs if there are several, otherwise 0."""
    time_ms: int
    """Time of the backup, Unix time in milliseconds."""
    software: str
    logs: list[BackedUpLog] = field(default_factory=list)
    key: str = ""
    """The mark of the key with which it is encrypted; empty: it is not."""

    def encode(self) -> bytes:
        """Return the manifest as a file."""
        document = {name: getattr(self, name) for name in self.__slots__ if name != "key"}
        if self.key:
            document = {"format": _FORMAT_SEALED, **document, "key": self.key}
        else:
            document = {"format": _FORMAT, **document}
        return orjson.dumps(document, option=orjson.OPT_INDENT_2) + b"\n"

    @classmethod
    def decode(cls, data: bytes, where: str) -> Manifest:
        """Return the manifest in a file; raises BadBackup."""
        try:
            document: dict[str, Any] = orjson.loads(data)
            version = document.pop("format")
            if version not in (_FORMAT, _FORMAT_SEALED):
                raise BadBackup(
                    f"backup {where} has format {version}, this foldmq reads formats up to "
                    f"{_FORMAT_SEALED}: use a later foldmq"
                )
            logs = [BackedUpLog(**entry) for entry in document.pop("logs")]
            return cls(**document, logs=logs)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BadBackup(f"backup {where}: its {MANIFEST} is damaged") from None


class BackupTarget(Protocol):
    """Where a backup is written."""

    def add(self, name: str, data: bytes) -> None:
        """Write a segment."""

    def finish(self, manifest: Manifest) -> None:
        """Complete the backup."""


def explain_failure(where: object, error: OSError) -> EventStoreError:
    """Return the error for a backup that cannot be read or written."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return DiskFull(str(where))
    if error.errno == errno.EPIPE:
        return DiskFull(f"{where}: the program that reads the backup ended")
    return DataDirError(Path(str(where)), f"cannot be used: {error.strerror}")


class SegmentCover:
    """Seals the segments of a backup with a key, and opens them; without a key they are plain."""

    def __init__(self, key: StoreKey | None, where: str) -> None:
        """``where`` is the backup, for messages."""
        self._key = key
        self._where = where
        self._sealer = key.sealer(b"backup") if key is not None else None

    def sealed(self, name: str, data: bytes) -> bytes:
        """Return a segment as it is stored."""
        if self._key is None or self._sealer is None:
            return data
        return SEALED_SEGMENT + bytes.fromhex(self._key.mark) + self._sealer.seal(data, name)

    def opened(self, name: str, stored: bytes) -> bytes:
        """Return a segment that is stored. Raises StoreKeyError and BadBackup."""
        if not stored.startswith(SEALED_SEGMENT):
            return stored
        if self._key is None or self._sealer is None:
            raise StoreKeyError(
                f"backup {self._where} is encrypted: give the file with its key "
                "(--encryption-key-file)"
            )
        if stored[len(SEALED_SEGMENT) : _MARK_END].hex() != self._key.mark:
            raise StoreKeyError(
                f"encryption_key_file = {self._key.file}: this is not the key of backup "
                f"{self._where}"
            )
        try:
            return self._sealer.open(stored[_MARK_END:], name)
        except NotOpened:
            raise BadBackup(f"backup {self._where}: {name} is damaged") from None


class BackupDirectory:
    """A directory with a backup."""

    def __init__(self, path: Path, key: StoreKey | None = None) -> None:
        """Use a directory; ``key`` is that of an encrypted backup."""
        self.path = DataDir(path).path
        self._cover = SegmentCover(key, str(self.path))

    def manifest(self) -> Manifest | None:
        """Return the manifest; None if there is none. Raises BadBackup and DataDirError."""
        try:
            return Manifest.decode((self.path / MANIFEST).read_bytes(), str(self.path))
        except FileNotFoundError:
            return None
        except OSError as error:
            raise explain_failure(self.path, error) from None

    def prepare(self) -> None:
        """Create the directory. Raises DataDirError if it contains anything but a backup."""
        try:
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            names = sorted(entry.name for entry in self.path.iterdir())
        except OSError as error:
            raise explain_failure(self.path, error) from None
        own = (MANIFEST, MANIFEST + ".new", "foldmq.lock")
        other = [name for name in names if name not in own and not name.endswith(_SEGMENT)]
        if other:
            raise DataDirError(
                self.path, f"contains {other[0]}, which is not of a backup: name a directory for it"
            )

    def read(self, name: str) -> bytes:
        """Return a segment. Raises BadBackup, StoreKeyError and DataDirError."""
        try:
            return self._cover.opened(name, (self.path / name).read_bytes())
        except FileNotFoundError:
            raise BadBackup(f"backup {self.path} is incomplete: {name} is missing") from None
        except OSError as error:
            raise explain_failure(self.path / name, error) from None

    def add(self, name: str, data: bytes) -> None:
        """Write a segment, and sync it."""
        try:
            with DataDir(self.path).open_private(self.path / name) as file:
                file.write(self._cover.sealed(name, data))
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise explain_failure(self.path, error) from None

    def finish(self, manifest: Manifest) -> None:
        """Replace the manifest, and remove the segments that it does not name."""
        self._sync()
        DataDir(self.path).write_private(self.path / MANIFEST, manifest.encode().decode())
        named = {name for log in manifest.logs for name in log.segments}
        for file in self.path.glob(f"*{_SEGMENT}"):
            if file.name not in named:
                file.unlink(missing_ok=True)

    def _sync(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class BackupStream:
    """A tar archive that is written to a stream."""

    def __init__(self, stream: IO[bytes], where: str, key: StoreKey | None = None) -> None:
        self._where = where
        self._cover = SegmentCover(key, where)
        self._tar = tarfile.open(fileobj=stream, mode="w|")  # noqa: SIM115 - closed by finish

    def add(self, name: str, data: bytes) -> None:
        """Write a segment."""
        self._write(name, self._cover.sealed(name, data))

    def _write(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size, info.mode = len(data), 0o600
        try:
            self._tar.addfile(info, io.BytesIO(data))
        except OSError as error:
            raise explain_failure(self._where, error) from None

    def finish(self, manifest: Manifest) -> None:
        """Write the manifest, and the end of the archive."""
        self._write(MANIFEST, manifest.encode())
        try:
            self._tar.close()
        except OSError as error:
            raise explain_failure(self._where, error) from None


def segment_name(log: str, first: int, last: int) -> str:
    """Return the name of the segment with these records of a log."""
    return f"{log}.{first}-{last}{_SEGMENT}"


def framed_record(sequence: int, data: bytes) -> bytes:
    """Return a record as a segment has it."""
    return _FRAME.pack(sequence, len(data)) + data


def _records_in(name: str, data: bytes) -> Iterator[tuple[str, int, bytes]]:
    """Yield log, sequence and bytes of the records of a segment; raises CorruptLog."""
    log = name.removesuffix(_SEGMENT).rpartition(".")[0]
    at = 0
    sequence = 0
    while at < len(data):
        if at + _FRAME.size > len(data):
            raise CorruptLog(sequence + 1, f"is incomplete in {name}")
        sequence, size = _FRAME.unpack_from(data, at)
        at += _FRAME.size
        if at + size > len(data):
            raise CorruptLog(sequence, f"is incomplete in {name}")
        yield log, sequence, data[at : at + size]
        at += size


class BackupReader:
    """Reads a backup in a directory, or a tar archive; ``manifest`` is set at the end at last."""

    def __init__(self, source: Path | IO[bytes], key: StoreKey | None = None) -> None:
        """Read a directory or a file, or a stream; ``key`` is that of an encrypted backup.

        Raises NoLog, BadBackup and DataDirError.
        """
        self.manifest: Manifest | None = None
        self.where = str(source) if isinstance(source, Path) else "the standard input"
        self._source = source
        self._key = key
        if isinstance(source, Path) and source.is_dir():
            self.manifest = BackupDirectory(source).manifest()
            if self.manifest is None:
                raise NoLog(f"directory {source}: contains no backup")
        elif isinstance(source, Path) and not source.exists():
            raise NoLog(f"backup {source}: does not exist")

    def records(self) -> Iterator[tuple[str, int, bytes]]:
        """Yield log, sequence and bytes of each record.

        Raises BadBackup, CorruptLog and StoreKeyError.
        """
        if self.manifest is not None and isinstance(self._source, Path):
            directory = BackupDirectory(self._source, self._key)
            for log in self.manifest.logs:
                for name in log.segments:
                    yield from _records_in(name, directory.read(name))
            return
        try:
            yield from self._of_archive()
        except (tarfile.TarError, EOFError):
            raise BadBackup(f"backup {self.where} is no tar archive, or is truncated") from None
        except OSError as error:
            raise explain_failure(self.where, error) from None
        if self.manifest is None:
            raise BadBackup(f"backup {self.where} is truncated: its end, {MANIFEST}, is missing")

    def _of_archive(self) -> Iterator[tuple[str, int, bytes]]:
        source, cover = self._source, SegmentCover(self._key, self.where)
        stream = source.open("rb") if isinstance(source, Path) else source
        with stream, tarfile.open(fileobj=stream, mode="r|*") as tar:
            for member in tar:
                file = tar.extractfile(member)
                if file is None:
                    continue
                data = file.read()
                if len(data) < member.size:
                    raise BadBackup(f"backup {self.where} is truncated")
                name = Path(member.name).name
                if name == MANIFEST:
                    self.manifest = Manifest.decode(data, self.where)
                elif name.endswith(_SEGMENT):
                    yield from _records_in(name, cover.opened(name, data))
