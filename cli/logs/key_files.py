"""Files whose first line is a key."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING, Final

import structlog

from cli.settings.setting_sources import ConfigError
from eventstore.edited_files import skip_mark
from eventstore.encryption import StoreKey

if TYPE_CHECKING:
    from pathlib import Path

_SHORTEST_STORE_KEY: Final = 32

log = structlog.get_logger("foldmq")


def read_key(name: str, path: Path, shortest: int) -> bytes:
    """Return the key in a file, set by ``name``; raises ConfigError for an invalid one.

    ``shortest`` is the number of characters that it needs.
    """
    try:
        key = skip_mark(path.read_bytes()).partition(b"\n")[0].strip()
    except OSError as error:
        raise ConfigError(f"{name} = {path}: cannot read: {error.strerror}") from None
    if len(key) < shortest:
        raise ConfigError(
            f"{name} = {path}: the key has {len(key)} characters, it needs at least "
            f"{shortest}: openssl rand -hex 32 makes one"
        )
    return key


def store_key(path: Path | None) -> StoreKey | None:
    """Return the key of encryption at rest in a file; raises ConfigError for an invalid one."""
    if path is None:
        return None
    return StoreKey(read_key("encryption_key_file", path, _SHORTEST_STORE_KEY), path)


def check_store_key(path: Path | None) -> None:
    """Check the file with the key of encryption at rest, as :func:`warn_of_access`.

    Raises ConfigError for an invalid file.
    """
    if path is not None:
        store_key(path)
        warn_of_access("encryption_key_file", path, "the data directory")


def warn_of_access(name: str, path: Path, what: str) -> None:
    """Log a warning if other users can access the file with a key.

    A group may read the file of another owner, such as root.
    """
    found = path.stat()
    own = found.st_uid == os.geteuid()
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO if own else stat.S_IRWXO):
        others = "go" if own else "o"
        log.warning(
            "other users of this machine have access to a key: change the mode of its file",
            key=what,
            setting=name,
            command=f"chmod {others}= {path}",
        )
