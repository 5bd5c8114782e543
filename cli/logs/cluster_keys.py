"""The file with the key that the nodes of a cluster share."""

import os
import stat
from pathlib import Path
from typing import Final

import structlog

from cli.settings.setting_sources import ConfigError
from cli.settings.settings import Settings
from eventstore.edited_files import skip_mark

_SHORTEST_KEY: Final = 16

log = structlog.get_logger("foldmq")


def cluster_key(settings: Settings) -> bytes:
    """Return the key of the cluster, empty without; raises ConfigError for an invalid file."""
    path = settings.cluster_key_file
    return b"" if path is None else read_cluster_key(path)


def read_cluster_key(path: Path) -> bytes:
    """Return the key of a cluster in a file; raises ConfigError for an invalid one."""
    try:
        key = skip_mark(path.read_bytes()).partition(b"\n")[0].strip()
    except OSError as error:
        raise ConfigError(f"cluster_key_file = {path}: cannot read: {error.strerror}") from None
    if len(key) < _SHORTEST_KEY:
        raise ConfigError(
            f"cluster_key_file = {path}: the key has {len(key)} characters, it needs at least "
            f"{_SHORTEST_KEY}: openssl rand -hex 32 makes one"
        )
    return key


def check_cluster_key(settings: Settings) -> None:
    """Log a warning if other users can access the file with the cluster's key.

    A group may read the file of another owner, such as root. Raises ConfigError for an invalid
    file.
    """
    path = settings.cluster_key_file
    if path is None:
        return
    read_cluster_key(path)
    found = path.stat()
    own = found.st_uid == os.geteuid()
    if found.st_mode & (stat.S_IRWXG | stat.S_IRWXO if own else stat.S_IRWXO):
        others = "go" if own else "o"
        log.warning(
            "other users of this machine have access to the key of the cluster: change the mode of "
            "cluster_key_file",
            command=f"chmod {others}= {path}",
        )
