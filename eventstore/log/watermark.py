"""The watermark: a note, outside the log, of the last record known to be on disk.

A server that finds a damaged block after a crash may truncate its file there without a message: the
chain of the rest is intact. Only a note kept elsewhere can show that there was more. The mark is
written, in place and without a sync, before any record is acknowledged. So it is exact when
processes are killed; after a power failure it may be old, but it is never ahead of the log.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Final

import orjson

from eventstore.errors import BadNatsOptions, CorruptLog

if TYPE_CHECKING:
    from pathlib import Path

_ROOM: Final = 256
"""Size of the file in bytes: less than a sector, so that a power failure cannot leave it half
written."""


class Watermark:
    """A file that names a record on disk: its stream, sequence and link."""

    def __init__(self, path: Path, stream: str, domain: str | None = None) -> None:
        """Note records of a stream in a JetStream domain; None: the domain of the server."""
        self._path = path
        self._stream = stream
        self._domain = domain
        self._written = 0
        self._file: int | None = None
        self._noted_bytes = b""
        self._directory: os.stat_result | None = None

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
        """Note a record that is on disk. A failed write is harmless."""
        if sequence == self._written:
            return
        noted = {"stream": self._stream, "sequence": sequence, "link": link.hex()}
        if self._domain is not None:
            noted["domain"] = self._domain
        try:
            if self._file is None:
                self._file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
                os.ftruncate(self._file, _ROOM)
                self._directory = self._path.parent.stat()
            self._noted_bytes = orjson.dumps(noted).ljust(_ROOM)
            os.pwrite(self._file, self._noted_bytes, 0)
        except OSError:
            return
        self._written = sequence

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
            os.pwrite(file, self._noted_bytes, 0)
            draft.replace(self._path)
        except OSError:
            return False
        os.close(self._file)
        self._file = file
        return True

    def note(self, sequence: int, link: bytes) -> None:
        """Note a record that another node reports as stored, unless a later one was noted."""
        if not self._written:
            noted = self.read()
            self._written = noted[0] if noted is not None else 0
        if sequence > self._written:
            self.write(sequence, link)

    def check_end(self, last: int, noted: tuple[int, bytes] | None = None) -> None:
        """Raise CorruptLog when the log ends before a record that was stored.

        ``noted`` is the mark read before the end of the log was requested, for the case that
        records are noted meanwhile.
        """
        noted = noted or self.read()
        if noted is not None and noted[0] > last:
            raise CorruptLog(
                last + 1, f"is missing: the log had reached record {noted[0]} and ends before it"
            )
