"""Searches files for a text, in every form in which foldmq or another program may have written it.

What is compressed or encrypted is searched as well, as far as it can be read: the JSON of records,
zlib in the index, gzip, bzip2, xz and tar, and with the key of encryption at rest the store, the
index and backups. Sealed contents of records cannot be searched.
"""

import bz2
import contextlib
import gzip
import json
import lzma
import os
import stat
import tarfile
import unicodedata
import zlib
from base64 import b64encode
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final, cast
from urllib.parse import quote

import orjson

from eventstore.encryption import StoreKey
from eventstore.errors import EventStoreError, UsageError
from eventstore.format.records import MAGIC, deflated_json
from eventstore.reading.backup_files import SEALED_SEGMENT, SegmentCover
from eventstore.reading.segment import SEALED_INDEX, Segment
from eventstore.server.store_encryption import block_key, read_block

SHORTEST: Final = 4
"""Bytes of a text: random data contain shorter ones."""
_STEP = 64 * 1024 * 1024
_WINDOW = _STEP + 33 * 1024 * 1024
"""Bytes of a file in memory: a record that begins in the first ``_STEP`` ends in them."""
_PIECE: Final = 64 * 1024
_ZLIB: Final = (b"\x78\x01", b"\x78\x5e", b"\x78\x9c", b"\x78\xda")
_UNPACKED: Final = 64 * 1024 * 1024
"""Maximum number of bytes of one compressed block."""
_OPENERS: Final[dict[bytes, Callable[[IO[bytes]], IO[bytes]]]] = {
    b"\x1f\x8b\x08": lambda file: cast("IO[bytes]", gzip.GzipFile(fileobj=file)),
    b"BZh": lambda file: cast("IO[bytes]", bz2.BZ2File(file)),
    b"\xfd7zXZ\0": lambda file: cast("IO[bytes]", lzma.LZMAFile(file)),  # noqa: SIM115 - as given
}
_CLOSED: Final = {
    b"PK\x03\x04": "it is a zip archive",
    b"7z\xbc\xaf\x27\x1c": "it is a 7z archive",
    b"\x28\xb5\x2f\xfd": "it is compressed with zstd",
    b"\x04\x22\x4d\x18": "it is compressed with lz4",
    b"age-encryption.org": "it is encrypted with age",
}
_SPECIAL: Final = (*_OPENERS, *_CLOSED, SEALED_SEGMENT)
_PARQUET: Final = b"PAR1"
_HEAD: Final = 32
_NO_KEY: Final = "it is encrypted: give --encryption-key-file"
_WRONG_KEY: Final = "it is encrypted, and its key is missing, damaged, or not the one given"


def forms_of(text: str) -> dict[bytes, str]:
    """Return the bytes in which a file may contain a text, with the name of each form.

    Raises UsageError for a text that random bytes may contain.
    """
    if len(text.encode()) < SHORTEST:
        raise UsageError(f"--check: the text needs at least {SHORTEST} bytes")
    forms: dict[bytes, str] = {}
    for same in dict.fromkeys((text, *(unicodedata.normalize(form, text) for form in _UNICODE))):
        for name, data in _forms(same):
            forms.setdefault(data, name)
    return forms


_UNICODE: Final = ("NFC", "NFD")


def _forms(text: str) -> Iterator[tuple[str, bytes]]:
    data = text.encode()
    yield "UTF-8", data
    yield "UTF-16", text.encode("utf-16-le")
    yield "UTF-16", text.encode("utf-16-be")
    for encoding in ("latin-1", "cp1252"):
        if not text.isascii() and text.encode(encoding, "ignore").decode(encoding) == text:
            yield encoding, text.encode(encoding)
    for hexadecimal in (data.hex(), data.hex().upper()):
        yield "hexadecimal", hexadecimal.encode()
    yield from _of_base64(data)
    for escaped in (json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1]):
        for variant in (escaped, escaped.replace("/", "\\/")):
            yield "JSON", variant.encode()
    yield "JSON", _recased(json.dumps(text)[1:-1], "\\u", 4, str.upper).encode()
    for safe in ("", "/"):
        for percent in (quote(text, safe=safe), quote(text, safe=safe).replace("%20", "+")):
            yield "percent-encoding", percent.encode()
            yield "percent-encoding", _recased(percent, "%", 2, str.lower).encode()
    if "/" in text:
        yield "NATS subject", text.replace("/", ".").encode()


def _of_base64(data: bytes) -> Iterator[tuple[str, bytes]]:
    """Yield the text at each of the three alignments, without what its neighbours decide on."""
    for shift in range(3):
        coded = b64encode(bytes(shift) + data)
        whole = coded[(8 * shift + 5) // 6 : (shift + len(data)) * 8 // 6]
        yield "base64", whole
        yield "base64", whole.translate(bytes.maketrans(b"+/", b"-_"))


def _recased(text: str, before: str, digits: int, recase: Callable[[str], str]) -> str:
    """Return a text with the hexadecimal digits of its escapes in the other case."""
    first, *others = text.split(before)
    return before.join([first, *(recase(part[:digits]) + part[digits:] for part in others)])


@dataclass(slots=True)
class TextHit:
    """A file, or another place, that contains the text."""

    place: str
    forms: Counter[str] = field(default_factory=Counter)
    """How often it does, by form."""


class TextSearch:
    """Searches places for a text, and notes what it did and did not search."""

    def __init__(
        self,
        text: str,
        key: StoreKey | None = None,
        columns: Callable[[Path], Iterable[bytes]] | None = None,
    ) -> None:
        """Search with the key of encryption at rest, if any.

        ``columns`` yields the contents of a Parquet file; it may raise ValueError. Raises
        UsageError for a text that is too short.
        """
        self.forms = forms_of(text)
        self.hits: list[TextHit] = []
        self.files = 0
        """Number of files searched."""
        self.bytes = 0
        self.skipped: list[tuple[str, str]] = []
        """What was not searched, and why."""
        self._key = key
        self._columns = columns

    def place(self, path: Path) -> None:
        """Search a file, or all files of a directory, their names included."""
        if not path.is_dir():
            self._file(path)
            return
        for folder, folders, names in os.walk(path, onerror=self._not_listed):
            folders.sort()
            for name in sorted([*folders, *names]):
                entry = Path(folder, name)
                self._count(str(entry), os.fsencode(name), "in its name")
                if name in names:
                    self._file(entry)
                elif entry.is_symlink():
                    why = "it is a symbolic link to a directory: give that with --in"
                    self.skipped.append((str(entry), why))

    def data(self, place: str, data: bytes, end: int | None = None) -> None:
        """Search bytes, and what is deflated in them; what begins before ``end`` counts."""
        end = len(data) if end is None else end
        self.bytes += end
        self._count(place, data, "", end)
        for header in _offsets(data, MAGIC, end):
            self._count(place, deflated_json(data, header), "in a record")
        for start in _ZLIB:
            for offset in _offsets(data, start, end):
                self._count(place, _inflated(data, offset), "compressed")

    def _file(self, path: Path) -> None:
        with self._noted(str(path)):
            if not stat.S_ISREG(path.stat().st_mode):
                return
            with path.open("rb") as file:
                self._read(path, file)
            self.files += 1

    @contextlib.contextmanager
    def _noted(self, place: str) -> Iterator[None]:
        """Note a place that cannot be searched, and why."""
        try:
            yield
        except FileNotFoundError:
            pass  # removed meanwhile, or a dangling link
        except OSError as error:
            self.skipped.append((place, error.strerror or "it is compressed, and damaged"))
        except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError):
            self.skipped.append((place, "it is compressed, and damaged"))
        except (EventStoreError, ValueError) as error:
            self.skipped.append((place, str(error)))

    def _read(self, path: Path, file: IO[bytes]) -> None:
        place, head = str(path), _head(file)
        if head.startswith(SEALED_INDEX):
            self._index(path)
        elif path.suffix == ".blk" and path.with_suffix(".key").exists():
            self._block(path)
        elif _is_servers(path):
            raise ValueError("it is encrypted, and only its NATS server can read it")
        elif head.startswith(_PARQUET):
            self._windows(place, file)
            if self._columns is None:
                raise ValueError("it is a Parquet file: install foldmq[spark]")
            for column in self._columns(path):
                self.data(place, column)
        else:
            self._stream(place, file)
            self._members(path)

    def _members(self, path: Path) -> None:
        """Search those files of a tar archive that are compressed or encrypted."""
        try:
            archive = tarfile.open(path)  # noqa: SIM115 - closed below
        except (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError):
            return
        with archive:
            for member in archive:
                content, place = archive.extractfile(member), f"{path}: {member.name}"
                if content is not None and _head(content).startswith(_SPECIAL):
                    with self._noted(place):
                        self._stream(place, content)

    def _stream(self, place: str, data: IO[bytes]) -> None:
        """Search what a stream has, which may be compressed."""
        head = _head(data)
        for magic, why in _CLOSED.items():
            if head.startswith(magic):
                raise ValueError(why)
        if head.startswith(SEALED_SEGMENT):
            self._sealed_segment(place, data.read())
            return
        for magic, opener in _OPENERS.items():
            if head.startswith(magic):
                data = opener(data)
        self._windows(place, data)

    def _windows(self, place: str, data: IO[bytes]) -> None:
        """Search a stream, a part at a time."""
        window = data.read(_WINDOW)
        while len(window) == _WINDOW and (more := data.read(_STEP)):
            self.data(place, window, _STEP)
            window = window[_STEP:] + more
        self.data(place, window)

    def _block(self, path: Path) -> None:
        if self._key is None:
            raise ValueError(_NO_KEY)
        if block_key(path, self._key) is None:
            raise ValueError(_WRONG_KEY)
        self.data(str(path), read_block(path, self._key))

    def _index(self, path: Path) -> None:
        if self._key is None:
            raise ValueError(_NO_KEY)
        segment = Segment(path, self._key.sealer(b"index"))
        try:
            for pair in segment.items():
                self.data(str(path), orjson.dumps(pair))
        finally:
            segment.close()

    def _sealed_segment(self, place: str, data: bytes) -> None:
        if self._key is None:
            raise ValueError(_NO_KEY)
        name = place.rpartition(": ")[2].rpartition("/")[2]
        self.data(place, SegmentCover(self._key, place).opened(name, data))

    def _count(self, place: str, data: bytes, where: str, end: int | None = None) -> None:
        for form, name in self.forms.items():
            count = sum(1 for _ in _offsets(data, form, len(data) if end is None else end))
            if count:
                if not self.hits or self.hits[-1].place != place:
                    self.hits.append(TextHit(place))
                self.hits[-1].forms[f"{name} {where}".rstrip()] += count

    def _not_listed(self, error: OSError) -> None:
        self.skipped.append((str(error.filename), error.strerror or "it cannot be listed"))


def _is_servers(path: Path) -> bool:
    """Return whether a file says something of an encrypted stream that is not of foldmq."""
    stream = next((folder for folder in path.parents if (folder / "meta.key").exists()), None)
    if stream is None or path.suffix == ".key":
        return False
    return not any(folder.name.startswith("FOLDMQ_") for folder in (stream, *stream.parents))


def _head(file: IO[bytes]) -> bytes:
    """Return the first bytes of a file, which is read from its beginning next."""
    head = file.read(_HEAD)
    file.seek(0)
    return head


def _offsets(data: bytes, part: bytes, end: int) -> Iterator[int]:
    at = data.find(part)
    while 0 <= at < end:
        yield at
        at = data.find(part, at + 1)


def _inflated(data: bytes, at: int) -> bytes:
    """Decompress the data at an offset, up to the first damaged byte."""
    inflate, parts, size = zlib.decompressobj(), [], 0
    while not inflate.eof and at < len(data) and size < _UNPACKED:
        try:
            parts.append(inflate.decompress(data[at : at + _PIECE], _UNPACKED))
        except zlib.error:
            break
        size += len(parts[-1])
        at += _PIECE
    return b"".join(parts)
