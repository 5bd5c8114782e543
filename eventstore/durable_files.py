"""Files that are on disk when a function returns; only this user can read new ones."""

import os
from pathlib import Path
from typing import Final

DRAFT: Final = ".new"
"""What the name of a file ends with until it is complete."""


def sync(path: Path) -> None:
    """Sync a file or a directory; raises OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_new(path: Path, data: bytes) -> None:
    """Write a file that does not exist yet; its directory is not synced. Raises OSError."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def replace(path: Path, data: bytes) -> None:
    """Write a file, or replace it atomically; raises OSError."""
    draft = path.with_name(path.name + DRAFT)
    draft.unlink(missing_ok=True)
    try:
        write_new(draft, data)
        draft.replace(path)
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    sync(path.parent)
