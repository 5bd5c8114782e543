"""How far the log was known to reach, kept outside the log.

A server that finds a damaged block after a crash may cut its file there and say nothing: the
chain of what is left is whole. Only somebody who remembers that there was more can tell. The
mark is written about once a second and not synced: after a power cut it may be old, never wrong.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import orjson

from eventstore.errors import CorruptLog

if TYPE_CHECKING:
    from pathlib import Path


class Watermark:
    """A file that names a record which was on disk: its stream, sequence and link."""

    def __init__(self, path: Path, stream: str) -> None:
        self._path = path
        self._stream = stream
        self._written = 0

    def read(self) -> tuple[int, bytes] | None:
        """Return sequence and link of the record, or None when none was noted (or it is torn)."""
        try:
            noted = orjson.loads(self._path.read_bytes())
            if noted["stream"] != self._stream:
                return None
            return int(noted["sequence"]), bytes.fromhex(noted["link"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def write(self, sequence: int, link: bytes) -> None:
        """Note a record that is on disk. A failure to write is of no consequence."""
        if sequence == self._written:
            return
        noted = {"stream": self._stream, "sequence": sequence, "link": link.hex()}
        temporary = self._path.with_suffix(".new")
        try:
            temporary.write_bytes(orjson.dumps(noted))
            temporary.replace(self._path)
        except OSError:
            return
        self._written = sequence

    def check_end(self, last: int) -> None:
        """Raise CorruptLog when the log ends before a record that was stored."""
        noted = self.read()
        if noted is not None and noted[0] > last:
            raise CorruptLog(
                last + 1, f"is missing: the log had reached record {noted[0]} and ends before it"
            )
