"""The watermark: a note, outside the log, of the last record known to be on disk.

A server that finds a damaged block after a crash may truncate its file there without a message: the
chain of the rest is intact. Only a note kept elsewhere can show that there was more. The mark is
written, in place and without a sync, before any record is acknowledged. So it is exact when
processes are killed; after a power failure it may be old, but it is never ahead of the log.

A copy of a data directory, taken file by file, is not of one moment: its mark may be ahead of its
log, and the log of the original may have gone on. The mark contains the identity of its file, its
inode and the generation of that, which a copy does not have. So a directory that was moved within
a file system is no copy; a snapshot of blocks is not recognised as one.
"""

import fcntl
import os
from pathlib import Path
from typing import Any, Final

import orjson

from eventstore.errors import BadNatsOptions, CorruptLog
from eventstore.format.node_events import LogEndUnproven

_ROOM: Final = 256
"""Size of the file in bytes: less than a sector, so that a power failure cannot leave it half
written."""
_GENERATION: Final = 0x80087601
"""The request FS_IOC_GETVERSION of Linux: file systems use the number of an inode again, for
another generation."""
_RESTORED: Final = "restored"
"""File beside the mark that names the backup from which the directory was restored."""


class Watermark:
    """A file that names a record on disk: its stream, sequence and link."""

    def __init__(
        self, path: Path, stream: str, domain: str | None = None, *, beside: bool = False
    ) -> None:
        """Note records of a stream in a JetStream domain; None: the domain of the server.

        ``beside``: the log is in the same data directory, and is copied with the mark.
        """
        self._path = path
        self._beside = beside
        self._stream = stream
        self._domain = domain
        self._written = 0
        self._file: int | None = None
        self._link = b""
        self._directory: os.stat_result | None = None
        self._own: tuple[int, int] | None = None
        """Identity of the open file."""

    def read(self) -> tuple[int, bytes] | None:
        """Return sequence and link of the noted record; None if none was noted or it is damaged."""
        try:
            noted = self._noted()
            if noted["stream"] != self._stream:
                return None
            return int(noted["sequence"]), bytes.fromhex(noted["link"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def _noted(self) -> dict[str, Any]:
        noted: dict[str, Any] = orjson.loads(self._path.read_bytes())
        return noted

    def is_copy(self) -> bool:
        """Return whether mark and log were copied: another file than this one was written.

        Earlier versions noted no identity: their marks are not taken for copies.
        """
        if not self._beside:
            return False
        try:
            inode, generation = self._noted()["file"]
            descriptor = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW)
        except (OSError, ValueError, KeyError, TypeError):
            return False
        try:
            number, own = _identity(descriptor)
        finally:
            os.close(descriptor)
        return inode != number or (generation != own and bool(generation and own))

    def unproven_end(self, last: int, last_ms: int) -> LogEndUnproven | None:
        """Return why it cannot be shown that a log is whole; None if it can.

        ``last`` is its last record, 0 for an empty log, and ``last_ms`` the time of this record.
        """
        if not last:
            return None
        try:
            restored = orjson.loads(self._path.with_name(_RESTORED).read_bytes())
            if restored["stream"] == self._stream:
                return LogEndUnproven(_RESTORED, last, last_ms, source=str(restored["from"]))
        except (OSError, ValueError, KeyError, TypeError):
            pass
        noted = self.read()
        if noted is None:
            return LogEndUnproven("no_watermark", last, last_ms)
        if self.is_copy():
            return LogEndUnproven("copy", last, last_ms, noted[0])
        return None

    def check_domain(self) -> None:
        """Raise BadNatsOptions when the log was in another JetStream domain."""
        try:
            noted = self._noted().get("domain")
        except (OSError, ValueError, AttributeError):
            return
        if self.read() is not None and noted != self._domain:
            configured = "none" if self._domain is None else self._domain
            was = "none" if noted is None else noted
            raise BadNatsOptions(
                f"nats_domain is {configured}, but the log of this data directory is in domain "
                f"{was}: set it back, or begin with another --data-dir"
            )

    def write(self, sequence: int, link: bytes) -> None:
        """Note a record that is on disk. A failed write is harmless.

        From now on this file is the mark of its own directory, not a copy.
        """
        if sequence == self._written:
            return
        try:
            if self._file is None:
                self._open(sequence, link)
            else:
                self._put(self._file, sequence, link)
        except OSError:
            return
        self._written, self._link = sequence, link

    def keep(self) -> bool:
        """Write the file again if it was removed while this process uses it; return whether so."""
        if self._file is None or self._directory is None:
            return False
        try:
            if os.path.samestat(self._path.lstat(), os.fstat(self._file)):
                return False
        except FileNotFoundError:
            pass
        except OSError:
            return False
        try:
            # Not into another directory that took the place of this one.
            if not os.path.samestat(self._path.parent.stat(), self._directory):
                return False
            draft = self._path.with_name(self._path.name + ".new")
            draft.unlink(missing_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
            file = os.open(draft, flags, 0o600)
            self._own = None
            self._put(file, self._written, self._link)
            draft.replace(self._path)
        except OSError:
            return False
        os.close(self._file)
        self._file = file
        return True

    def _open(self, sequence: int, link: bytes) -> None:
        """Open the file and write to it; sync a new one, so that a power failure leaves it."""
        new = not self._path.exists()
        descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, _ROOM)
            self._put(descriptor, sequence, link)
            if new:
                os.fsync(descriptor)
            self._path.with_name(_RESTORED).unlink(missing_ok=True)
        except OSError:
            os.close(descriptor)
            raise
        self._file = descriptor
        self._directory = self._path.parent.stat()

    def _put(self, descriptor: int, sequence: int, link: bytes) -> None:
        noted: dict[str, Any] = {"stream": self._stream, "sequence": sequence, "link": link.hex()}
        if self._domain is not None:
            noted["domain"] = self._domain
        noted["file"] = self._own = self._own or _identity(descriptor)
        os.pwrite(descriptor, orjson.dumps(noted).ljust(_ROOM), 0)

    def note(self, sequence: int, link: bytes) -> None:
        """Note a record that another node reports as stored, unless a later one was noted."""
        if not self._written:
            noted = self.read()
            self._written = noted[0] if noted is not None else 0
        if sequence > self._written:
            self.write(sequence, link)

    def check_end(self, last: int, noted: tuple[int, bytes] | None = None) -> None:
        """Raise CorruptLog when the log ends before a record that was stored.

        Not if both are copies: the log may have been copied before the mark.

        ``noted`` is the mark read before the end of the log was requested, for the case that
        records are noted meanwhile.
        """
        noted = noted or self.read()
        if noted is not None and noted[0] > last and not self.is_copy():
            raise CorruptLog(
                last + 1, f"is missing: the log had reached record {noted[0]} and ends before it"
            )


def _identity(descriptor: int) -> tuple[int, int]:
    """Return the inode of an open file, and its generation; 0: the file system tells none."""
    status = os.fstat(descriptor)
    try:
        return status.st_ino, int.from_bytes(
            fcntl.ioctl(descriptor, _GENERATION, bytes(8)), "little"
        )
    except OSError:
        return status.st_ino, 0
