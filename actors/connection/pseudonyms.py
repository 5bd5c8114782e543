"""Pseudonyms of client identifiers, which may contain personal data."""

from hashlib import blake2b

KEY_SIZE = 32
"""Bytes of a key."""
_DIGEST = 16


def pseudonym(client_id: str, key: bytes) -> str:
    """Return the pseudonym of a client identifier, always the same for the same key.

    Without the key, the client identifier cannot be found by guessing. Pseudonyms of different
    client identifiers practically never collide (128 bits).
    """
    raw = client_id.encode("utf-8", "surrogatepass")
    return "p-" + blake2b(raw, digest_size=_DIGEST, key=key).hexdigest()


def name_in_log(client_id: str, key: bytes) -> str:
    """Return the name of a client identifier in the log: its pseudonym, if there is a key."""
    return pseudonym(client_id, key) if key and client_id else client_id
