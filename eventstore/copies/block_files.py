"""Reads records directly from the files of a NATS server's store, also from damaged ones.

A server that finds damage may cut off the rest of a file, or refuse it. Each message is stored as,
with integers little-endian: length of the whole (4 bytes, the highest bit set if there are
headers), sequence (8), time (8), length of the subject (2), subject, headers with their length (4)
if there are any, data, checksum (8). Of these only the data count here: a record has a checksum and
a link of its own, so that damage around it costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from eventstore.errors import CorruptLog, DataDirError
from eventstore.format.records import MAGIC, check_record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

_FRAME: Final = 20
"""Bytes before the length of the subject."""
_CHECKSUM: Final = 8
_HEADERS: Final = 4096
"""Bytes after the subject within which a record begins."""
_LENGTH: Final = 0x7FFF_FFFF
_COMPRESSED: Final = b"cmp"


class StoredBytes(NamedTuple):
    """What the store contains of one message."""

    sequence: int
    """Its sequence as stored; it may be damaged."""
    data: bytes
    """The record; of a damaged one what is there."""


def block_files(store: Path, stream: str) -> list[Path]:
    """Return the files with the messages of a stream, in order."""
    found = store.glob(f"jetstream/*/streams/{stream}/msgs/*.blk")
    return sorted(
        (file for file in found if file.stem.isdecimal()), key=lambda file: int(file.stem)
    )


def is_compressed(file: Path) -> bool:
    """Return whether the server has compressed a file. Raises DataDirError."""
    try:
        with file.open("rb") as stream:
            return stream.read(len(_COMPRESSED)) == _COMPRESSED
    except OSError as error:
        raise DataDirError(file, f"cannot be read: {error.strerror}") from None


def framed(sequence: int, subject: str, data: bytes) -> bytes:
    """Return a message as a file stores it; its time and checksum are 0, and nothing reads them."""
    name = subject.encode()
    size = _FRAME + 2 + len(name) + len(data) + _CHECKSUM
    return b"".join(
        (
            size.to_bytes(4, "little"),
            sequence.to_bytes(8, "little"),
            bytes(8),
            len(name).to_bytes(2, "little"),
            name,
            data,
            bytes(_CHECKSUM),
        )
    )


def read_blocks(files: list[Path], subject: str) -> Iterator[StoredBytes]:
    """Yield what files contain of the messages of a subject, in order; raises DataDirError."""
    name = subject.encode()
    word = len(name).to_bytes(2, "little") + name
    for file in files:
        try:
            data = file.read_bytes()
        except OSError as error:
            raise DataDirError(file, f"cannot be read: {error.strerror}") from None
        yield from _messages(data, word)


def _messages(file: bytes, word: bytes) -> Iterator[StoredBytes]:
    at, size = 0, len(file)
    while at < size:
        found = file.find(word, at + _FRAME)
        frame = found - _FRAME if found >= 0 else size
        if frame > at:  # a message whose own subject is damaged
            begin = file.find(MAGIC[:3], at, frame)
            if begin >= 0:
                yield StoredBytes(0, file[begin : frame - _CHECKSUM])
        if found < 0:
            return
        length = int.from_bytes(file[frame : frame + 4], "little")
        sequence = int.from_bytes(file[frame + 4 : frame + 12], "little")
        begin = found + len(word)
        if length > _LENGTH:
            begin += 4 + int.from_bytes(file[begin : begin + 4], "little")
        end = frame + (length & _LENGTH)
        if end > size or not is_intact(file[begin : end - _CHECKSUM]):
            # Damaged, perhaps only around the record: it ends before the next message.
            following = file.find(word, found + len(word))
            end = following - _FRAME if following >= 0 else size
            begin = found + len(word)
            magic = file.find(MAGIC[:3], begin, min(end, begin + _HEADERS))
            begin = magic if magic >= 0 else begin
        yield StoredBytes(sequence, file[begin : end - _CHECKSUM])
        at = end


def is_intact(data: bytes) -> bool:
    """Return whether bytes are a record with a correct checksum, apart from its version."""
    try:
        check_record(0, MAGIC + data[len(MAGIC) :])
    except CorruptLog:
        return False
    return True
