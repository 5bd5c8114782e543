"""Changes objects in an S3 bucket; :class:`spark.tables.directories.Directory` reads them.

Arrow reads any object store, but cannot create an object only if there is none. The package
``obstore`` can; it is an extra, imported when an archive is written.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from eventstore.display import escaped
from protocol.errors import FoldmqError
from spark.runtime.errors import NotWritable, install_command
from spark.tables.directories import (
    Directory,
    StoreUnavailable,
    user_and_query,
    without_secrets,
)

if TYPE_CHECKING:
    from obstore.store import S3Credential, S3Store

S3_SCHEMES: Final = ("s3", "s3a", "s3n")
_ATTEMPTS: Final = 5
"""Times that a store may report a conflict without an object."""
_SENTENCE: Final = 300
_RETRIES: Final = 4
_RETRY_TIMEOUT: Final = timedelta(seconds=60)
_TIMEOUT: Final = timedelta(seconds=120)
"""Limit of a request: of the upload of one part of a file."""
_PARTS: Final = 4
"""Parts of a file, of 5 MiB each, that are uploaded at once."""
_CONNECT_TIMEOUT: Final = timedelta(seconds=5)
_ENDPOINTS: Final = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


class NoObjectStore(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """The package that writes to object stores is not installed."""

    exit_code = 69


def is_s3(where: str) -> bool:
    """Return whether a URI names a place in an S3 bucket."""
    return where.partition("://")[0] in S3_SCHEMES and "://" in where


def require_obstore() -> None:
    """Raise NoObjectStore if the package is not installed."""
    try:
        import obstore  # noqa: F401
    except ImportError:
        raise NoObjectStore(
            "object stores need more packages (foldmq[s3]): " + install_command("s3")
        ) from None


@dataclass(frozen=True, slots=True)
class ObjectStore:
    """Changes objects below a directory of a bucket; connects when it is made. Not pickled."""

    folder: Directory
    _store: S3Store
    _path: str

    @classmethod
    def open(cls, folder: Directory) -> ObjectStore:
        """Open a directory with the credentials of its URI, or of the environment.

        Raises NoObjectStore, NoDirectory or StoreUnavailable.
        """
        require_obstore()
        from obstore.store import S3Store

        region, place = folder.region_and_path()
        bucket, _, path = place.partition("/")
        user, query = user_and_query(folder.where)
        options: dict[str, Any] = {"region": region}
        if user:
            key, _, secret = user.partition(":")
            # not beside a session token of the environment, which belongs to other keys
            options["credential_provider"] = partial(_credentials, unquote(key), unquote(secret))
        endpoint = _endpoint(query)
        if endpoint is not None:
            options["endpoint"] = endpoint
        client = {
            "allow_http": endpoint is not None and endpoint.startswith("http://"),
            "timeout": _TIMEOUT,
            "connect_timeout": _CONNECT_TIMEOUT,
        }
        with _errors(folder):
            store = S3Store(
                bucket,
                client_options=client,  # type: ignore[arg-type]
                retry_config={"max_retries": _RETRIES, "retry_timeout": _RETRY_TIMEOUT},
                **options,
            )
        return cls(folder, store, path)

    def put(self, name: str, file: Path) -> None:
        """Upload a file. Raises NotWritable or StoreUnavailable."""
        import obstore

        with _errors(self.folder):
            obstore.put(self._store, self._key(name), file, max_concurrency=_PARTS)

    def create(self, name: str, data: bytes) -> bool:
        """Create an object if there is none; return whether it has this content.

        The answer to an attempt may be lost, so an object with this content counts as created.
        Raises NotWritable or StoreUnavailable; then it may exist nevertheless.
        """
        for _ in range(_ATTEMPTS):
            if self.try_to_create(name, data):
                return True
            content = self.folder.read(name)
            if content is not None:
                return content == data
        raise StoreUnavailable(f"{self.folder} reports conflicts without a reason")

    def try_to_create(self, name: str, data: bytes) -> bool:
        """Create an object; return False if there is one, or another one is being created.

        Raises NotWritable or StoreUnavailable; then it may exist nevertheless.
        """
        import obstore
        from obstore.exceptions import AlreadyExistsError, PreconditionError

        with _errors(self.folder):
            try:
                obstore.put(self._store, self._key(name), data, mode="create")
            except (AlreadyExistsError, PreconditionError):
                return False
            return True

    def delete(self, names: Iterable[str]) -> None:
        """Delete objects; some may not exist. Raises NotWritable or StoreUnavailable."""
        import obstore

        keys = [self._key(name) for name in names]
        with _errors(self.folder):
            if keys:
                obstore.delete(self._store, keys)

    def _key(self, name: str) -> str:
        return f"{self._path}/{name}"


def _credentials(key: str, secret: str) -> S3Credential:
    return {"access_key_id": key, "secret_access_key": secret, "token": None, "expires_at": None}


def _endpoint(query: dict[str, str]) -> str | None:
    """Return the URL of the store; None: that of AWS. Arrow finds it in the same places."""
    if "endpoint_override" in query:
        place = query["endpoint_override"]
        return place if "://" in place else f"{query.get('scheme', 'https')}://{place}"
    return next((os.environ[name] for name in _ENDPOINTS if os.environ.get(name)), None)


@contextmanager
def _errors(folder: Directory) -> Iterator[None]:
    """Raise errors of the package as NotWritable or StoreUnavailable, in one line."""
    from obstore.exceptions import (
        BaseError,
        NotSupportedError,
        PermissionDeniedError,
        UnauthenticatedError,
    )

    cannot = f"the archive {folder} cannot be written"
    try:
        yield
    except FileNotFoundError:
        raise NotWritable(f"{cannot}: there is no such bucket") from None
    except (PermissionDeniedError, UnauthenticatedError):
        raise NotWritable(
            f"{cannot}: access denied: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and "
            "that they may put, list and delete objects"
        ) from None
    except NotSupportedError:
        raise no_conditions(folder) from None
    except (BaseError, ValueError) as error:
        text = str(error).partition("\n\nDebug source")[0]
        if "501 Not Implemented" in text:
            raise no_conditions(folder) from None
        if "/latest/api/token" in text:
            raise NotWritable(
                f"{cannot}: there are no credentials: set AWS_ACCESS_KEY_ID and "
                "AWS_SECRET_ACCESS_KEY"
            ) from None
        why = " ".join(without_secrets(text, folder.where).split())
        raise StoreUnavailable(f"{cannot}: {escaped(why, _SENTENCE)}") from None


def no_conditions(folder: Directory) -> NotWritable:
    """Return the error for a store without conditional writes."""
    return NotWritable(
        f"the archive {folder} cannot be written: its store ignores If-None-Match, so that two "
        "runs could overwrite each other; use a store with conditional writes, or a directory"
    )
