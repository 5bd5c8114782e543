"""Files whose first line is a key."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from cli.settings.setting_sources import ConfigError
from eventstore.edited_files import skip_mark
from eventstore.encryption import StoreKey

if TYPE_CHECKING:
    from cli.settings.settings import Settings

_SHORTEST_STORE_KEY: Final = 32
_SHORTEST_CLUSTER_KEY: Final = 16


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


def cluster_key(settings: "Settings") -> bytes:
    """Return the key of the cluster, empty without; raises ConfigError for an invalid file."""
    path = settings.cluster_key_file
    return b"" if path is None else read_cluster_key(path)


def read_cluster_key(path: Path) -> bytes:
    """Return the key of a cluster in a file; raises ConfigError for an invalid one."""
    return read_key("cluster_key_file", path, _SHORTEST_CLUSTER_KEY)
