"""Files of lines that commands change while others read them: locked, and replaced in one step."""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.settings import ConfigError

PATIENCE: Final = 5.0
"""Seconds to wait for another process that changes the file: that takes milliseconds."""
_LOOK_AGAIN: Final = 0.02


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Keep other processes from changing the file meanwhile.

    What is locked is the file, which only those can hold who may read its hashes; one that is to be
    made is not there, so that its directory is locked instead. Each change replaces the file: who
    has waited for a lock looks whether it is still the one of that name. The broker locks nothing.
    """
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            held = os.open(path if path.exists() else _real(path).parent, os.O_RDONLY)
        except OSError:
            # Not there, or not to be opened: reading or writing the file says so, if it matters.
            yield
            return
        try:
            _lock(path, held, deadline)
            if _is_of(path, held):
                yield
                return
        finally:
            os.close(held)  # which ends the lock


def _is_of(path: Path, held: int) -> bool:
    """Return whether what is held is the file of that name, or its directory if there is none."""
    try:
        now = path.stat()
    except OSError:
        now = _real(path).parent.stat()
    return os.path.samestat(now, os.fstat(held))


def _lock(path: Path, held: int, deadline: float) -> None:
    while True:
        try:
            fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ConfigError(
                    f"{path}: another process is changing it, or keeps it or its directory locked"
                ) from None
            time.sleep(_LOOK_AGAIN)
        except OSError:
            return  # a file system without locks, such as some over a network: as good as it gets
        else:
            return


def _real(path: Path) -> Path:
    # Not resolve(): before Python 3.13 a link to itself is an error of a kind of its own.
    return Path(os.path.realpath(path))


def lines_of(content: str) -> list[str]:
    """Return the lines of a file, without what ends them."""
    # Not splitlines(): a name may hold what Unicode counts as the end of a line.
    lines = content.split("\n")
    return lines if lines[-1] else lines[:-1]


def write(path: Path, lines: list[str], *, as_directory: bool = False) -> None:
    """Replace the file in one step: a reader or a crash never sees half of it.

    It keeps its owner and mode; a new one has mode 0600, and with ``as_directory`` the owner of its
    directory. Raises ConfigError.
    """
    old = path.stat() if path.exists() else None
    owner = path.parent.stat() if old is None and as_directory and path.parent.exists() else old
    # A link is followed, so that the file it points to is replaced and not the link.
    path = _real(path)
    try:
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
    try:
        with os.fdopen(handle, "w", encoding="utf-8", newline="") as file:
            file.writelines(line + "\n" for line in lines)
            file.flush()
            if owner is not None:
                # The broker's own user may be the only one who can read it, also after root did
                # this; who may not give a file away could not have taken it away either.
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), old.st_mode & 0o777 if old is not None else 0o600)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
