"""The messages in the files of a NATS server, read as they are: also those that are damaged."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from eventstore.encryption import StoreKey
from eventstore.errors import DataDirError
from eventstore.format.records import (
    MAGIC,
    is_intact,
)
from eventstore.server.store_encryption import read_block

# A server that finds damage may cut off the rest of a file, or refuse it. Each message is stored
# as, with integers little-endian: length of the whole (4 bytes, the highest bit set if there are
# headers), sequence (8), time (8), length of the subject (2), subject, headers with their length
# (4) if there are any, data, checksum (8). Of these only the data count here: a record has a
# checksum and a link of its own, so that damage around it costs nothing.

_FRAME: Final = 20
"""Bytes before the length of the subject."""
_CHECKSUM: Final = 8
_HEADERS: Final = 4096
"""Bytes after the subject within which a record begins."""
_LENGTH: Final = 0x7FFF_FFFF
_TOMBSTONE: Final = _FRAME + 2 + _CHECKSUM
"""Bytes of a message that stands for a deleted one: it has neither subject nor data."""
_COMPRESSED: Final = b"cmp"


class StoredBytes(NamedTuple):
    """What the store contains of one message."""

    sequence: int
    """Its sequence as stored; it may be damaged."""
    data: bytes
    """The record; of a damaged one what is there."""


@dataclass(slots=True)
class FrameDamage:
    """Damage beside the records, which costs none of them: NATS stores more than these."""

    frames: int = 0
    """Number of messages whose record is intact, but not their length, sequence or subject."""
    stray: int = 0
    """Number of bytes that belong to no message."""


def block_files(store: Path, stream: str) -> list[Path]:
    """Return the files with the messages of a stream, in order."""
    blocks = store.glob(f"jetstream/*/streams/{stream}/msgs/*.blk")
    return sorted(
        (file for file in blocks if file.stem.isdecimal()), key=lambda file: int(file.stem)
    )


def is_compressed(file: Path, key: StoreKey | None = None) -> bool:
    """Return whether the server has compressed a file. Raises DataDirError."""
    return _messages_in(file, key, len(_COMPRESSED)) == _COMPRESSED


def _messages_in(file: Path, key: StoreKey | None, size: int = -1) -> bytes:
    try:
        return read_block(file, key, size)
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


def read_blocks(
    files: list[Path], subject: str, key: StoreKey | None, damage: FrameDamage
) -> Iterator[StoredBytes]:
    """Yield what files contain of the messages of a subject, in order; raises DataDirError.

    ``key`` opens those of an encrypted store. What is wrong beside the records is added to
    ``damage``.
    """
    name = subject.encode()
    word = len(name).to_bytes(2, "little") + name
    for file in files:
        yield from _messages(_messages_in(file, key), word, damage)


def _messages(file: bytes, word: bytes, damage: FrameDamage) -> Iterator[StoredBytes]:
    at, size = 0, len(file)
    while at < size:
        place = file.find(word, at + _FRAME)
        frame = place - _FRAME if place >= 0 else size
        if frame > at:  # a message whose own subject is damaged
            begin = file.find(MAGIC, at, frame)
            if begin >= 0:
                data = file[begin : frame - _CHECKSUM]
                damage.frames += is_intact(data)
                yield StoredBytes(0, data)
            else:
                damage.stray += _stray(file[at:frame])
        if place < 0:
            return
        length = int.from_bytes(file[frame : frame + 4], "little")
        sequence = int.from_bytes(file[frame + 4 : frame + 12], "little")
        begin = place + len(word)
        if length > _LENGTH:
            begin += 4 + int.from_bytes(file[begin : begin + 4], "little")
        end = frame + (length & _LENGTH)
        if end > size or not is_intact(file[begin : end - _CHECKSUM]):
            # Damaged, perhaps only around the record: it ends before the next message.
            following = file.find(word, place + len(word))
            if following >= 0:
                end = following - _FRAME
            elif not size < end <= size + _CHECKSUM:  # else only the server's checksum is cut off
                end = size
            begin = place + len(word)
            magic = file.find(MAGIC, begin, min(end, begin + _HEADERS))
            begin = magic if magic >= 0 else begin
            damage.frames += is_intact(file[begin : end - _CHECKSUM])
        yield StoredBytes(sequence, file[begin : end - _CHECKSUM])
        at = end


def _stray(gap: bytes) -> int:
    """Return the number of bytes between two messages that stand for no deleted message."""
    at = 0
    while int.from_bytes(gap[at : at + 4], "little") == _TOMBSTONE <= len(gap) - at and gap[
        at + _FRAME : at + _FRAME + 2
    ] == bytes(2):
        at += _TOMBSTONE
    return len(gap) - at
