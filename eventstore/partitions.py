"""The partition of a client: the log, and so the broker, that its session belongs to."""

from __future__ import annotations

import hashlib


def partition_of(client_id: str, count: int) -> int:
    """Return the number, from 0, of the partition of a client identifier among ``count``."""
    digest = hashlib.sha256(client_id.encode(errors="surrogatepass")).digest()
    return int.from_bytes(digest[:8], "big") % count


def partition_names(name: str, count: int) -> list[str]:
    """Return the names of the logs of a node or cluster with several, in their order."""
    return [f"{name}-p{number}" for number in range(count)]
