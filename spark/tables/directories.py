"""Directories to read from: on this machine, or in a store that Arrow supports by its URI."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

import pyarrow as pa
from pyarrow import fs

from eventstore.display import escaped
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_HADOOP_NAMES: Final = {"s3a": "s3", "s3n": "s3"}
"""Hadoop's names of stores -> their usual names."""


_HOST: Final = re.compile(r"(?:[^:\[]*|\[[^]]*\])(?::[0-9]*)?")
_HARMLESS: Final = ("endpoint_override", "region", "scheme")
"""Parameters of a query that contain no secrets and are useful in a message."""
_HIDDEN: Final = "..."
_MIN: Final = 4
"""Minimum letters of a secret to be hidden: shorter ones occur in other words."""


class NoDirectory(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A directory does not exist, or cannot be read."""

    exit_code = 66


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
        return Directory(f"{self.where.rstrip('/')}/{name}")

    def folders(self) -> list[str]:
        """Return the names of the directories in it. Raises NoDirectory."""

        def look(system: fs.FileSystem, path: str) -> list[str]:
            found = system.get_file_info(fs.FileSelector(path))
            return sorted(one.base_name for one in found if one.type == fs.FileType.Directory)

        return self._do(look)

    def read(self, name: str) -> bytes | None:
        """Return the content of a file in it; None if it does not exist. Raises NoDirectory."""

        def look(system: fs.FileSystem, path: str) -> bytes | None:
            file = f"{path}/{name}"
            if system.get_file_info(file).type != fs.FileType.File:
                return None
            with system.open_input_stream(file) as stream:
                data: bytes = stream.read()
                return data

        return self._do(look)

    def open(self, name: str) -> pa.NativeFile:
        """Open a file in it. Raises OSError, FileNotFoundError if it does not exist."""
        system, path = self._system()
        return system.open_input_file(f"{path}/{name}")

    def _do(self, look: Callable[[fs.FileSystem, str], T]) -> T:
        try:
            return look(*self._system())
        except FileNotFoundError:
            raise NoDirectory(f"there is no directory {self}") from None
        except (OSError, pa.ArrowException) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            why = " ".join(without_secrets(why, self.where).split())
            raise NoDirectory(f"{self} cannot be read: {escaped(why)}") from None

    def _system(self) -> tuple[fs.FileSystem, str]:
        scheme, separator, rest = self.where.partition("://")
        if not separator:
            return fs.LocalFileSystem(), self.where.rstrip("/") or "/"
        system, path = fs.FileSystem.from_uri(f"{_HADOOP_NAMES.get(scheme, scheme)}://{rest}")
        return system, path.rstrip("/") or "/"


def directory_text(where: str) -> str:
    """Return a directory for a message: a URI without user, password and query."""
    return escaped(_parts(where)[0], 4096)


def without_secrets(text: str, where: str) -> str:
    """Return a message about a directory without the parts that :func:`directory_text` omits."""
    plain, user, query = _parts(where)
    scheme, _, rest = where.partition("://")
    text = text.replace(f"{_HADOOP_NAMES.get(scheme, scheme)}://{rest}", plain)
    text = text.replace(where, plain)
    values = (pair.partition("=") for pair in re.split("[&;]", query))
    said = [value for name, _, value in values if name not in _HARMLESS]
    secrets = {user, query, *user.split(":", 1), *said}
    for secret in sorted(secrets | {unquote(one) for one in secrets}, key=len, reverse=True):
        if len(secret) >= _MIN:
            text = text.replace(secret, _HIDDEN)
    return text


def _parts(where: str) -> tuple[str, str, str]:
    """Return a URI without user and query, its user with the password, and its query."""
    scheme, separator, rest = where.partition("://")
    if not separator or scheme == "file":
        return where, "", ""
    place, query = re.match(r"([^?#]*)[?#]?(.*)", rest, re.DOTALL).groups()  # type: ignore[union-attr]
    host = place.partition("/")[0]
    if "@" not in host and _HOST.fullmatch(host) is None:
        host = place  # a slash in the password that is not written as %2F
    user = host.rpartition("@")[0]
    if not user or (scheme.startswith("abfs") and not set(user) & {":", "%"}):
        return f"{scheme}://{place}", "", query  # the part before @ is a container of Azure
    return f"{scheme}://{place[len(user) + 1 :]}", user, query
