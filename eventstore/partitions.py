"""The partition of a client: the log, and therefore the broker, that its session belongs to."""

import hashlib
import re
from typing import Final

_OF_SEVERAL: Final = re.compile(r"(.+)-(p([0-9]{1,2}))")
"""The name of one of several logs, of which there are at most 32."""


def partition_of(client_id: str, count: int) -> int:
    """Return the number, from 0, of the partition of a client identifier among ``count``."""
    digest = hashlib.sha256(client_id.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % count


def partition_names(name: str, count: int) -> list[str]:
    """Return the names of the logs of a node or cluster with several logs, in their order."""
    return [f"{name}-p{number}" for number in range(count)]


def directory_name(log: str) -> str | None:
    """Return the name of the directory of the process that writes a log, such as ``p0``.

    That is a subdirectory of the node's data directory; None if the name does not belong to one of
    several logs.
    """
    match = _OF_SEVERAL.fullmatch(log)
    return match[2] if match is not None else None


def split_log_name(log: str) -> tuple[str, int] | None:
    """Return the name of the node or cluster, and the number of one of its several logs.

    None if the name does not belong to one of several logs.
    """
    match = _OF_SEVERAL.fullmatch(log)
    return (match[1], int(match[3])) if match is not None else None


def short_name(log: str) -> str:
    """Return a name of a log that is unique among those of its node or cluster: ``p0``."""
    return directory_name(log) or log
