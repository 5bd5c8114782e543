"""Files that people edit: some editors put a byte order mark at the beginning, which is skipped.

Files that libraries read by their paths are copied for them.
"""

import codecs
import contextlib
import ssl
import tempfile
from collections.abc import Iterator
from pathlib import Path

from protocol.errors import FoldmqError


def skip_mark(data: bytes) -> bytes:
    """Return the content of a file without a byte order mark."""
    return data.removeprefix(codecs.BOM_UTF8)


def read_text(file: Path, what: str, refusal: type[FoldmqError]) -> str:
    """Return the text of a file without a byte order mark.

    Raises ``refusal``, with the file and the reason, if ``what`` cannot be read or is not UTF-8.
    """
    try:
        data = file.read_bytes()
    except OSError as error:
        raise refusal(f"{file}: cannot read {what}: {error.strerror}") from None
    return decode_text(file, data, refusal)


def decode_text(file: Path, data: bytes, refusal: type[FoldmqError]) -> str:
    """Return the text in ``data``, the content of a file; raises ``refusal`` if it is not UTF-8."""
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, len(data) - len(error.object) + error.start) + 1
        raise refusal(f"{file}:{line}: not UTF-8 text") from None


def has_mark(file: Path) -> bool:
    """Return whether a file begins with a byte order mark; raises OSError."""
    with file.open("rb") as stream:
        return stream.read(len(codecs.BOM_UTF8)) == codecs.BOM_UTF8


@contextlib.contextmanager
def unmarked_copy(file: Path) -> Iterator[Path]:
    """Return the path of a file, or of a private copy without its byte order mark.

    OpenSSL skips the first certificate of a PEM file that begins with one. Raises OSError.
    """
    if not has_mark(file):
        yield file
        return
    with tempfile.NamedTemporaryFile(prefix="foldmq-") as copy:
        copy.write(skip_mark(file.read_bytes()))
        copy.flush()
        yield Path(copy.name)


def client_context(authorities: Path | None) -> ssl.SSLContext:
    """Return a context that verifies servers; None: with the authorities of the system."""
    if authorities is None:
        return ssl.create_default_context()
    with unmarked_copy(authorities) as file:
        return ssl.create_default_context(cafile=file)


@contextlib.contextmanager
def unmarked_pair(certificate: Path, key: Path | None) -> Iterator[tuple[Path, Path | None]]:
    """Return the paths of a certificate and its key as :func:`unmarked_copy` does."""
    with contextlib.ExitStack() as copies:
        first = copies.enter_context(unmarked_copy(certificate))
        yield first, None if key is None else copies.enter_context(unmarked_copy(key))
