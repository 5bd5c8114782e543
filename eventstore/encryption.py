"""The key of encryption at rest, and the files that foldmq itself encrypts with it.

The NATS server encrypts the streams (``eventstore.server.store_encryption``); foldmq encrypts the
index and the backups. Each purpose has a key of its own, derived from the operator's key, so that
none of them tells anything about the others.
"""

from __future__ import annotations

import hashlib
import secrets
from pathlib import Path
from typing import Final

_PERSON: Final = b"foldmq-at-rest-1"
_NONCE_BYTES: Final = 12


class NotOpened(ValueError):  # noqa: N818 - named for the condition
    """Sealed data were changed, or were sealed with another key or for another place."""


class StoreKey:
    """The operator's key for everything in a data directory."""

    def __init__(self, secret: bytes, file: Path) -> None:
        """Use the secret that was read from ``file``, at least 32 bytes that nobody can guess."""
        self.file = file
        self._root = hashlib.sha256(secret).digest()

    @property
    def mark(self) -> str:
        """A value by which the key is recognised, and which tells nothing about it."""
        return self._derived(b"mark").hex()[:16]

    @property
    def of_streams(self) -> str:
        """The key of the NATS server, as text that its configuration takes for no number."""
        return f"foldmq-{self._derived(b'streams').hex()}"

    def sealer(self, purpose: bytes) -> Sealer:
        """Return what seals the files for a purpose, such as the index."""
        return Sealer(self._derived(purpose))

    def _derived(self, purpose: bytes) -> bytes:
        return hashlib.blake2b(purpose, key=self._root, digest_size=32, person=_PERSON).digest()


class Sealer:
    """Seals pieces of files with AES-256-GCM, each with a random nonce before it."""

    def __init__(self, key: bytes) -> None:
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM  # only where it is needed

        self._cipher = AESGCM(key)

    def seal(self, data: bytes, place: str) -> bytes:
        """Return data sealed for a place: they can be opened there only."""
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._cipher.encrypt(nonce, data, place.encode())

    def open(self, sealed: bytes, place: str) -> bytes:
        """Return the data that were sealed for a place. Raises NotOpened."""
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(
                sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:], place.encode()
            )
        except (InvalidTag, ValueError):
            raise NotOpened("the data cannot be opened") from None
