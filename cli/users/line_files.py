"""Text files changed by commands while other processes read them: locked, replaced atomically."""

import contextlib
import fcntl
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cli.settings.setting_sources import ConfigError

LOCK_TIMEOUT: Final = 5.0
"""Seconds to wait for another process that changes the file, which takes milliseconds."""
_LOOK_AGAIN: Final = 0.02


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Lock the file against changes by other processes.

    The lock is on the file, or on its directory if the file does not exist yet. Each change
    replaces the file, so a process that has waited for the lock checks that it still holds the
    current file. The broker takes no lock.
    """
    deadline = time.monotonic() + LOCK_TIMEOUT
    while True:
        try:
            held = os.open(path if path.exists() else _real(path).parent, os.O_RDONLY)
        except OSError:
            # Missing, or cannot be opened: reading or writing the file reports it, if it matters.
            yield
            return
        try:
            _lock(path, held, deadline)
            if _is_of(path, held):
                yield
                return
        finally:
            os.close(held)  # releases the lock


def _is_of(path: Path, held: int) -> bool:
    """Return whether the descriptor is the current file, or its directory if there is none."""
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
                raise ConfigError(f"{path}: locked by another process") from None
            time.sleep(_LOOK_AGAIN)
        except OSError:
            return  # some network file systems have no locks
        else:
            return


def _real(path: Path) -> Path:
    # Not resolve(): before Python 3.13 it raises a different error for a link to itself.
    return Path(os.path.realpath(path))


def lines_of(content: str) -> list[str]:
    """Return the lines of a file without newlines."""
    # Not splitlines(): a name may contain Unicode line separators.
    lines = content.split("\n")
    return lines if lines[-1] else lines[:-1]


def write_lines(path: Path, lines: list[str], *, as_directory: bool = False) -> None:
    """Replace the file atomically: a reader or a crash never sees half of it.

    It keeps its owner and mode. A new one has mode 0600, and with ``as_directory`` the owner of its
    directory. Raises ConfigError.
    """
    old = path.stat() if path.exists() else None
    owner = path.parent.stat() if old is None and as_directory and path.parent.exists() else old
    # Replace the target of a link, not the link.
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
                # Keeps the file readable by the broker's user if root runs this command; other
                # users cannot change the owner.
                with contextlib.suppress(PermissionError):
                    os.fchown(file.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(file.fileno(), old.st_mode & 0o777 if old is not None else 0o600)
            os.fsync(file.fileno())
        Path(name).replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            Path(name).unlink()
        raise ConfigError(f"{path}: cannot write: {error.strerror}") from None
