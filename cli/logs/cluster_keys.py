"""The file with the key that the nodes of a cluster share."""

from pathlib import Path
from typing import Final

from cli.logs.key_files import read_key
from cli.settings.settings import Settings

_SHORTEST_KEY: Final = 16


def cluster_key(settings: Settings) -> bytes:
    """Return the key of the cluster, empty without; raises ConfigError for an invalid file."""
    path = settings.cluster_key_file
    return b"" if path is None else read_cluster_key(path)


def read_cluster_key(path: Path) -> bytes:
    """Return the key of a cluster in a file; raises ConfigError for an invalid one."""
    return read_key("cluster_key_file", path, _SHORTEST_KEY)
