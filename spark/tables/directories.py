"""Directories to read from: on this machine, or in a store that Arrow supports by its URI."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import quote, unquote, unquote_to_bytes

import pyarrow as pa
from pyarrow import fs

from eventstore.display import escaped
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

_HADOOP_NAMES: Final = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of stores -> their usual names."""


_HOST: Final = re.compile(r"(?:[^:\[]*|\[[^]]*\])(?::[0-9]*)?")
_CONTROL: Final = re.compile(r"[\x00-\x1f\x7f]")
_HARMLESS: Final = ("endpoint_override", "region", "scheme")
"""Parameters of a query that contain no secrets and are useful in a message."""
_HIDDEN: Final = "..."
_MIN: Final = 4
"""Minimum letters of a secret to be hidden: shorter ones occur in other words."""
_SENTENCE: Final = 200


_READERS: Final = 16
"""Files that are read at once: each one is a request to an object store."""
_AWS_ERROR: Final = re.compile(r"AWS Error ([A-Z_]+)")
_DENIED: Final = ("ACCESS_DENIED", "INVALID_ACCESS_KEY_ID", "SIGNATURE_DOES_NOT_MATCH")
_CREDENTIALS: Final = "access denied: check AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"


class NoDirectory(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A directory does not exist, or cannot be read."""

    exit_code = 66


class StoreUnavailable(FoldmqError):  # noqa: N818
    """An object store cannot be reached, or answers with an error."""

    exit_code = 69


class FileStat(NamedTuple):
    """A file in a directory."""

    size: int
    """Bytes."""
    modified_s: float
    """Unix time in seconds."""


@dataclass(frozen=True, slots=True)
class Directory:
    """A directory: a path, or a URI such as ``s3://bucket/path``."""

    where: str = field(repr=False)
    """It may contain a password; :func:`directory_text` omits it."""

    def __str__(self) -> str:
        """Return the directory for a message."""
        return directory_text(self.where)

    def within(self, name: str) -> Directory:
        """Return a directory in this one."""
        if "://" not in self.where:
            return Directory(f"{self.where.rstrip('/')}/{name}")
        place, query = _split_query(self.where)
        return Directory(f"{place.rstrip('/')}/{quote(name, safe='=')}{query}")

    def folders(self) -> list[str]:
        """Return the names of the directories in it. Raises NoDirectory."""
        with self._opened() as (system, path):
            infos = system.get_file_info(fs.FileSelector(path))
        return sorted(info.base_name for info in infos if info.type == fs.FileType.Directory)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file in it; None if it does not exist. Raises NoDirectory."""
        with self._opened() as (system, path):
            if system.get_file_info(f"{path}/{name}").type != fs.FileType.File:
                return None
            return _content(system, f"{path}/{name}")

    def read_all(self, names: Iterable[str]) -> list[bytes]:
        """Return the contents of several files in it. Raises NoDirectory, StoreUnavailable."""
        with self._opened() as (system, path), ThreadPoolExecutor(_READERS) as pool:
            return list(pool.map(lambda name: _content(system, f"{path}/{name}"), names))

    def files(self, name: str = "") -> dict[str, FileStat]:
        """Return all files below a directory in it, by their paths in this one.

        There are none if it does not exist. Raises NoDirectory, StoreUnavailable.
        """
        with self._opened() as (system, path):
            # allow_not_found would also allow that the bucket does not exist
            try:
                infos = system.get_file_info(fs.FileSelector(f"{path}/{name}", recursive=True))
            except FileNotFoundError:
                return {}
            return {
                info.path.removeprefix(f"{path}/"): FileStat(
                    info.size, (info.mtime_ns or 0) / 1_000_000_000
                )
                for info in infos
                if info.type == fs.FileType.File
            }

    def sizes(self, names: Iterable[str]) -> list[int]:
        """Return the sizes of files in it, in bytes. Raises NoDirectory, StoreUnavailable."""
        with self._opened() as (system, path):
            infos = system.get_file_info([f"{path}/{name}" for name in names])
            if any(info.type != fs.FileType.File for info in infos):
                raise FileNotFoundError
        return [int(info.size) for info in infos]

    def region_and_path(self) -> tuple[str, str]:
        """Return the region of an S3 bucket, and the bucket and path of this directory in it.

        Raises NoDirectory, StoreUnavailable.
        """
        with self._opened() as (system, path):
            return str(system.region), path

    def names_objects(self) -> bool:
        """Return whether its path in a bucket can be that of objects, for all libraries."""
        path = unquote_to_bytes(_parts(self.where)[0].partition("://")[2].partition("/")[2])
        try:
            text = path.decode().rstrip("/")
        except UnicodeDecodeError:
            return False
        parts = text.split("/") if text else []
        return not any(part in ("", ".", "..") or _CONTROL.search(part) for part in parts)

    def open(self, name: str) -> pa.NativeFile:
        """Open a file in it. Raises OSError, FileNotFoundError if it does not exist."""
        system, path = self._system()
        return system.open_input_file(f"{path}/{name}")

    @contextmanager
    def _opened(self) -> Iterator[tuple[fs.FileSystem, str]]:
        """Yield the file system and the path of the directory in it."""
        try:
            yield self._system()
        except FileNotFoundError:
            raise NoDirectory(f"there is no directory {self}") from None
        except (OSError, pa.ArrowException, UnicodeDecodeError) as error:
            failure = store_error(error, self)
            if failure is not None:
                raise failure from None
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            why = " ".join(without_secrets(why, self.where).split())
            raise NoDirectory(f"{self} cannot be read: {escaped(why)}") from None

    def _system(self) -> tuple[fs.FileSystem, str]:
        scheme, separator, place = self.where.partition("://")
        if not separator:
            return fs.LocalFileSystem(), self.where.rstrip("/") or "/"
        scheme = _HADOOP_NAMES.get(scheme, scheme)
        if scheme == "s3" and not _parts(self.where)[0].partition("://")[2].partition("/")[0]:
            raise NoDirectory(f"{self} names no bucket: write s3://BUCKET/PATH")
        system, path = fs.FileSystem.from_uri(f"{scheme}://{place}")
        return system, path.rstrip("/") or "/"


def _content(system: fs.FileSystem, file: str) -> bytes:
    with system.open_input_stream(file) as stream:
        data: bytes = stream.read()
        return data


def user_and_query(where: str) -> tuple[str, dict[str, str]]:
    """Return user and password of a URI as written, and the parameters of its query."""
    _, user, query = _parts(where)
    pairs = (pair.partition("=") for pair in re.split("[&;]", query) if pair)
    return user, {name: unquote(value) for name, _, value in pairs}


def directory_text(where: str) -> str:
    """Return a directory for a message: a URI without user, password and query."""
    return escaped(_parts(where)[0], 4096)


def store_error(error: Exception, folder: Directory) -> FoldmqError | None:
    """Return the error for a failure of an object store; None if it has another reason."""
    match = _AWS_ERROR.search(str(error))
    if match is None:
        return None
    if match[1] in _DENIED:
        return NoDirectory(f"{folder} cannot be read: {_CREDENTIALS}")
    if match[1] == "NO_SUCH_BUCKET":
        return NoDirectory(f"{folder} cannot be read: there is no such bucket")
    why = without_secrets(str(error)[match.start(1) :], folder.where)
    return StoreUnavailable(f"{folder} cannot be read: {escaped(' '.join(why.split()), _SENTENCE)}")


def without_secrets(text: str, where: str) -> str:
    """Return a message about a directory without the parts that :func:`directory_text` omits."""
    plain, user, query = _parts(where)
    scheme, _, place = where.partition("://")
    text = text.replace(f"{_HADOOP_NAMES.get(scheme, scheme)}://{place}", plain)
    text = text.replace(where, plain)
    values = (pair.partition("=") for pair in re.split("[&;]", query))
    values_shown = [value for name, _, value in values if name not in _HARMLESS]
    secrets = {user, query, *user.split(":", 1), *values_shown}
    for secret in sorted(
        secrets | {unquote(secret_text) for secret_text in secrets}, key=len, reverse=True
    ):
        if len(secret) >= _MIN:
            text = text.replace(secret, _HIDDEN)
    return text


def _split_query(where: str) -> tuple[str, str]:
    """Return a URI without its query, and the query with its question mark."""
    query = _parts(where)[2]
    if not query:
        return where.rstrip("?"), ""
    return where[: -len(query) - 1], where[-len(query) - 1 :]


def _parts(where: str) -> tuple[str, str, str]:
    """Return a URI without user and query, its user with the password, and its query."""
    scheme, separator, address = where.partition("://")
    if not separator or scheme == "file":
        return where, "", ""
    place, query = re.match(r"([^?#]*)[?#]?(.*)", address, re.DOTALL).groups()  # type: ignore[union-attr]
    host = place.partition("/")[0]
    if "@" not in host and _HOST.fullmatch(host) is None:
        host = place  # a slash in the password that is not written as %2F
    user = host.rpartition("@")[0]
    if not user or (scheme.startswith("abfs") and not set(user) & {":", "%"}):
        return f"{scheme}://{place}", "", query  # the part before @ is a container of Azure
    return f"{scheme}://{place[len(user) + 1 :]}", user, query
