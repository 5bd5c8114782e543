"""Requests to erase a name, for logs whose brokers are away: files beside their files with keys.

A request has no name, but a hash of it with a random salt: the broker compares it with each name
that has a token. Whoever reads it can only guess names. A request that was carried out is
overwritten before its file is removed.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from eventstore import durable_files
from eventstore.format.sealing import SALT_BYTES
from eventstore.log.key_file import KeyFileError

if TYPE_CHECKING:
    from pathlib import Path

_MARK: Final = ".erase-"
_ABANDONED: Final = 60.0
"""Seconds after which a request that is not finished is left over; writing one takes less."""
_HASH: Final = b"foldmq-erase-1"


@dataclass(frozen=True, slots=True)
class NameRequest:
    """A request to erase a name."""

    by: str
    """The operator."""
    kind: str
    salt: str
    digest: str
    """In hexadecimal, as the salt."""
    path: Path | None = None
    """Its file, if it has one."""

    @classmethod
    def of(cls, kind: str, name: str, by: str) -> NameRequest:
        """Return the request for a name."""
        salt = secrets.token_hex(SALT_BYTES)
        return cls(by, kind, salt, _digest(kind, name, salt))

    def is_for(self, kind: str, name: str) -> bool:
        """Return whether it asks for a name."""
        return kind == self.kind and _digest(kind, name, self.salt) == self.digest


def store_request(request: NameRequest, key_file: Path) -> None:
    """Store a request for the log with this key file, on disk when this returns.

    Raises KeyFileError.
    """
    path = key_file.with_name(f"{key_file.name}{_MARK}{secrets.token_hex(8)}")
    fields = {name: getattr(request, name) for name in ("by", "kind", "salt", "digest")}
    try:
        durable_files.replace(path, orjson.dumps(fields))
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be written: {error.strerror}") from None


def stored_requests(key_file: Path) -> list[NameRequest]:
    """Return the requests for the log with this key file; raises KeyFileError.

    What a broker left that was killed while it wrote a request is removed.
    """
    requests: list[NameRequest] = []
    prefix = f"{key_file.name}{_MARK}"
    try:
        for path in sorted(key_file.parent.iterdir()):
            if not path.name.startswith(prefix):
                continue
            if path.name.endswith(durable_files.DRAFT):
                _remove_abandoned(path)
                continue
            try:
                fields = orjson.loads(path.read_bytes())
                requests.append(NameRequest(**fields, path=path))
            except (ValueError, TypeError):
                raise KeyFileError(
                    f"{path}: is no request of 'foldmq erase': remove it, and erase the name again"
                ) from None
    except OSError as error:
        raise KeyFileError(f"{key_file.parent}: cannot be read: {error.strerror}") from None
    return requests


def remove_request(request: NameRequest) -> None:
    """Overwrite a request that was carried out, and remove its file. Raises KeyFileError."""
    path = request.path
    if path is None:
        return
    try:
        file = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            # After a crash before its removal it is a request that no name matches.
            fields = {"by": "", "kind": request.kind, "salt": "0" * len(request.salt), "digest": ""}
            os.write(file, orjson.dumps(fields).ljust(os.fstat(file).st_size))
            os.fsync(file)
        finally:
            os.close(file)
        path.unlink()
        durable_files.sync(path.parent)
    except OSError as error:
        raise KeyFileError(f"{path}: cannot be removed: {error.strerror}") from None


def _digest(kind: str, name: str, salt: str) -> str:
    text = f"{kind}/{name}".encode("utf-8", "surrogatepass")
    own = hashlib.blake2b(text, digest_size=32, person=_HASH, salt=bytes.fromhex(salt))
    return own.hexdigest()


def _remove_abandoned(unfinished: Path) -> None:
    with contextlib.suppress(FileNotFoundError):  # it was finished meanwhile
        if unfinished.stat().st_mtime < time.time() - _ABANDONED:
            unfinished.unlink()
