"""The files with keys, checked before a broker starts."""

import os
import stat

import structlog

from cli.logs.key_files import read_cluster_key, store_key
from cli.settings.settings import Settings

log = structlog.get_logger("foldmq")


def check_keys(settings: Settings) -> None:
    """Check the files with keys, and log a warning for each that other users can access.

    A group may read the file of another owner, such as root. Raises ConfigError for an invalid
    file.
    """
    if settings.cluster_key_file is not None:
        read_cluster_key(settings.cluster_key_file)
    store_key(settings.encryption_key_file)
    for name in ("cluster_key_file", "encryption_key_file", "personal_key_file"):
        path = getattr(settings, name)
        if path is None or not path.exists():  # the broker makes that of personal topics
            continue
        state = path.stat()
        own = state.st_uid == os.geteuid()
        if state.st_mode & (stat.S_IRWXG | stat.S_IRWXO if own else stat.S_IRWXO):
            others = "go" if own else "o"
            log.warning(
                "other users of this machine have access to a key: change the mode of its file",
                setting=name,
                command=f"chmod {others}= {path}",
            )
