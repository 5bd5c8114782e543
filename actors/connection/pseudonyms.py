"""Names that stand for client identifiers, which may tell about people."""

from __future__ import annotations

from hashlib import blake2b

KEY_SIZE = 32
"""Bytes of a key."""
_DIGEST = 16


def pseudonym(client_id: str, key: bytes) -> str:
    """Return what stands for a client identifier: always the same with the same key.

    Without the key, the client cannot be found by trying; two pseudonyms are never the same.
    """
    raw = client_id.encode("utf-8", "surrogatepass")
    return "p-" + blake2b(raw, digest_size=_DIGEST, key=key).hexdigest()
