"""A bounded cache of the verdicts on logins, by a keyed hash of the credentials.

An entry is kept until its expiry, or until newer entries need its space.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from actors.access.credentials import Verdict


class _Entry(NamedTuple):
    verdict: Verdict
    until_ms: int
    weight: int


class VerdictCache:
    """Verdicts under a keyed hash of the credentials: without passwords or plain hashes.

    Each cache has its own random key, which it never reveals. The total weight of entries is at
    most ``most``; the least recently used are dropped first.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._weight = 0
        self._key = os.urandom(32)
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def key(self, *parts: str | bytes | None) -> bytes:
        """Return the keyed hash of ``parts``; different lists of parts have different hashes."""
        digest = hashlib.blake2b(key=self._key, digest_size=32)
        for part in parts:
            if part is None:
                digest.update(b"-")
                continue
            data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
            digest.update(b"%d:" % len(data))
            digest.update(data)
        return digest.digest()

    def get(self, key: bytes, now_ms: int = 0) -> Verdict | None:
        """Return the verdict under ``key`` if it is still valid at ``now_ms``."""
        entry = self._entries.get(key)
        if entry is None:
            return None
        if entry.until_ms and now_ms >= entry.until_ms:
            self._forget(key)
            return None
        self._entries.move_to_end(key)
        return entry.verdict

    def put(self, key: bytes, verdict: Verdict, until_ms: int = 0, weight: int = 1) -> None:
        """Cache a verdict until Unix time ``until_ms``; 0: as long as there is room."""
        if key in self._entries:
            self._forget(key)
        self._entries[key] = _Entry(verdict, until_ms, weight)
        self._weight += weight
        while self._weight > self._most:
            self._forget(next(iter(self._entries)))

    def _forget(self, key: bytes) -> None:
        self._weight -= self._entries.pop(key).weight
