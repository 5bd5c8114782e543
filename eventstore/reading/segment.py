"""A segment of an index: an immutable file of sorted keys, for a range of records.

A file consists of, in this order: blocks of neighbouring keys with their values, each compressed
JSON; the directory, also compressed JSON, with the head and the first key, the place and the
checksum of each block; and a trailer with the place and a digest of the directory. A changed byte
anywhere is an error, so a key that is not found is certainly missing. In the index of an encrypted
log, blocks and directory are sealed.
"""

import hashlib
import os
import struct
import weakref
import zlib
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any, Final

import orjson

from eventstore.encryption import Sealer
from eventstore.errors import EventStoreError

_MAGIC: Final = b"FMQINDX5"
SEALED_INDEX: Final = b"FMQINDS5"
_TRAILER: Final = struct.Struct(">QI16s8s")
_BLOCK_BYTES: Final = 16 * 1024
_HELD_BLOCKS: Final = 64
_HELD_LISTS: Final = 256
_LEVEL: Final = 1


class BadIndex(EventStoreError):  # noqa: N818 - named as its siblings in errors
    """A segment of an index is damaged, or belongs to another log: it is not used."""


@dataclass(frozen=True, slots=True)
class SegmentHead:
    """The range and the identity of a segment."""

    stream: str
    first: int
    last: int
    """Stream sequences of the first and the last record."""
    previous: str
    link: str
    """Links of the record before the first one and of the last one, in hexadecimal."""
    whole: int
    """Position from which states are known; 0: always."""
    began_ms: int
    """Time of the first record, Unix time in milliseconds."""
    heir: bool = False
    """Whether it contains the last states of sessions from segments that were removed."""
    effects: bool = False
    """Whether it has the keys ``P``; earlier versions wrote none."""


def write_segment(
    path: Path,
    head: SegmentHead,
    items: Iterable[tuple[str, Any]],
    sealer: Sealer | None = None,
) -> None:
    """Write a segment atomically; the keys must be sorted. Raises OSError."""
    magic = _MAGIC if sealer is None else SEALED_INDEX
    draft = path.with_name(path.name + ".new")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    firsts: list[str] = []
    ends: list[int] = []
    sums: list[int] = []
    with os.fdopen(descriptor, "wb") as file:
        file.write(magic)
        for first, block in _blocks(items):
            data = block
            if sealer is not None:
                data = sealer.seal(block, _place(path, len(firsts)))
            file.write(data)
            firsts.append(first)
            ends.append(file.tell())
            sums.append(zlib.crc32(data))
        directory = zlib.compress(
            orjson.dumps({"head": asdict(head), "firsts": firsts, "ends": ends, "sums": sums}),
            _LEVEL,
        )
        if sealer is not None:
            directory = sealer.seal(directory, _place(path))
        begin = file.tell()
        file.write(directory)
        digest = hashlib.sha256(directory).digest()[:16]
        file.write(_TRAILER.pack(begin, len(directory), digest, magic))
    draft.replace(path)


def _place(path: Path, block: int | None = None) -> str:
    """Return what a block, or the directory of a segment, is sealed for."""
    return path.name if block is None else f"{path.name} {block}"


def _blocks(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, bytes]]:
    """Yield the first key of each block, and the block."""
    texts: list[bytes] = []
    first, size = "", 0
    for key, value in items:
        if not texts:
            first = key
        text = orjson.dumps((key, value))
        texts.append(text)
        size += len(text)
        if size >= _BLOCK_BYTES:
            yield first, _packed(texts)
            texts, size = [], 0
    if texts:
        yield first, _packed(texts)


def _packed(texts: list[bytes]) -> bytes:
    return zlib.compress(b"[" + b",".join(texts) + b"]", _LEVEL)


class Segment:
    """A segment for reading; every error about its content is BadIndex."""

    def __init__(self, path: Path, sealer: Sealer | None = None) -> None:
        """Open a segment; raises BadIndex if it cannot be read or is damaged.

        With ``sealer`` it must be sealed, without it must be plain.
        """
        self.path = path
        self._sealer = sealer
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except OSError as error:
            raise BadIndex(f"index segment {path}: {error.strerror}") from None
        self._closed = weakref.finalize(self, os.close, self._file)
        self._blocks: OrderedDict[int, dict[str, Any]] = OrderedDict()
        self._listed: dict[str, list[int]] = {}
        try:
            self._read_directory()
        except BaseException:
            self.close()
            raise

    def _read_directory(self) -> None:
        try:
            self.size = os.fstat(self._file).st_size
            if self.size < _TRAILER.size + len(_MAGIC):
                raise self._damaged()
            trailer = os.pread(self._file, _TRAILER.size, self.size - _TRAILER.size)
            begin, size, digest, magic = _TRAILER.unpack(trailer)
            expected = _MAGIC if self._sealer is None else SEALED_INDEX
            if magic != expected or begin + size + _TRAILER.size != self.size:
                raise self._damaged()
            data = os.pread(self._file, size, begin)
            if hashlib.sha256(data).digest()[:16] != digest:
                raise self._damaged()
            directory = orjson.loads(zlib.decompress(self._opened(data, _place(self.path))))
            self.head = SegmentHead(**directory["head"])
            self._firsts: list[str] = directory["firsts"]
            self._ends: list[int] = directory["ends"]
            self._sums: list[int] = directory["sums"]
        except (OSError, ValueError, KeyError, TypeError, zlib.error, struct.error):
            raise self._damaged() from None

    def close(self) -> None:
        """Close the file now, not only when the segment is garbage-collected."""
        self._closed()
        self._file = -1

    def require(self, stream: str) -> None:
        """Raise BadIndex unless it belongs to the log in a stream."""
        if self.head.stream != stream:
            raise BadIndex(f"index segment {self.path} belongs to another log")

    def get(self, key: str) -> Any:
        """Return the value of a key; None: the segment has no such key."""
        number = bisect_right(self._firsts, key) - 1
        return self._block(number).get(key) if number >= 0 else None

    def listed(self, key: str) -> Sequence[int]:
        """Return the records listed for a key."""
        sequences = self._listed.get(key)
        if sequences is None:
            sequences = list(accumulate(self.get(key) or ()))
            if len(self._listed) >= _HELD_LISTS:
                self._listed.clear()
            self._listed[key] = sequences
        return sequences

    def starting(self, prefix: str) -> Iterator[tuple[str, Any]]:
        """Yield all keys that begin with a prefix, with their values, in order."""
        for number in range(max(0, bisect_right(self._firsts, prefix) - 1), len(self._firsts)):
            first = self._firsts[number]
            if first > prefix and not first.startswith(prefix):
                return
            for key, value in self._block(number).items():
                if key.startswith(prefix):
                    yield key, value

    def items(self) -> Iterator[tuple[str, Any]]:
        """Yield all keys with their values, in order, without keeping them in memory."""
        for number in range(len(self._firsts)):
            yield from self._load(number).items()

    def _block(self, number: int) -> dict[str, Any]:
        block = self._blocks.get(number)
        if block is None:
            block = self._blocks[number] = self._load(number)
            if len(self._blocks) > _HELD_BLOCKS:
                self._blocks.popitem(last=False)
        else:
            self._blocks.move_to_end(number)
        return block

    def _load(self, number: int) -> dict[str, Any]:
        begin = self._ends[number - 1] if number else len(_MAGIC)
        try:
            data = os.pread(self._file, self._ends[number] - begin, begin)
            if zlib.crc32(data) != self._sums[number]:
                raise self._damaged()
            data = self._opened(data, _place(self.path, number))
            return dict(orjson.loads(zlib.decompress(data)))
        except (OSError, ValueError, TypeError, zlib.error):
            raise self._damaged() from None

    def _opened(self, data: bytes, place: str) -> bytes:
        """Return a part as it was before it was sealed. Raises NotOpened, a ValueError."""
        return data if self._sealer is None else self._sealer.open(data, place)

    def _damaged(self) -> BadIndex:
        return BadIndex(f"index segment {self.path} is damaged")
