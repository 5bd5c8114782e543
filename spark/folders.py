"""Directories that are read from: of this machine, or of a store that Arrow knows by its URI."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import pyarrow as pa
from pyarrow import fs

from eventstore.shown import escaped
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TypeVar

    T = TypeVar("T")

_HADOOP_NAMES = {"s3a": "s3", "s3n": "s3"}
"""What Hadoop calls a store that has another name elsewhere."""


class NoFolder(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A directory is not there, or cannot be read."""

    exit_code = 66


@dataclass(frozen=True, slots=True)
class Folder:
    """A directory: a path, or a URI such as ``s3://bucket/path``."""

    where: str

    def __str__(self) -> str:
        """Name the directory in a message."""
        return escaped(self.where, 4096)

    def within(self, name: str) -> Folder:
        """Return a directory in this one."""
        return Folder(f"{self.where.rstrip('/')}/{name}")

    def folders(self) -> list[str]:
        """Return the names of the directories in it. Raises NoFolder."""

        def look(system: fs.FileSystem, path: str) -> list[str]:
            found = system.get_file_info(fs.FileSelector(path))
            return sorted(one.base_name for one in found if one.type == fs.FileType.Directory)

        return self._do(look)

    def read(self, name: str) -> bytes | None:
        """Return what a file in it holds, None if it is not there. Raises NoFolder."""

        def look(system: fs.FileSystem, path: str) -> bytes | None:
            file = f"{path}/{name}"
            if system.get_file_info(file).type != fs.FileType.File:
                return None
            with system.open_input_stream(file) as stream:
                data: bytes = stream.read()
                return data

        return self._do(look)

    def open(self, name: str) -> pa.NativeFile:
        """Open a file in it. Raises OSError, FileNotFoundError if it is not there."""
        system, path = self._system()
        return system.open_input_file(f"{path}/{name}")

    def _do(self, look: Callable[[fs.FileSystem, str], T]) -> T:
        try:
            return look(*self._system())
        except FileNotFoundError:
            raise NoFolder(f"there is no directory {self}") from None
        except (OSError, pa.ArrowException) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            raise NoFolder(f"{self} cannot be read: {escaped(why)}") from None

    def _system(self) -> tuple[fs.FileSystem, str]:
        scheme, separator, rest = self.where.partition("://")
        if not separator:
            return fs.LocalFileSystem(), self.where.rstrip("/") or "/"
        system, path = fs.FileSystem.from_uri(f"{_HADOOP_NAMES.get(scheme, scheme)}://{rest}")
        return system, path.rstrip("/") or "/"
