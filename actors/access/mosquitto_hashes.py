"""Hashes in Mosquitto's password file.

Mosquitto writes ``$6$SALT$HASH`` (SHA-512 of password and salt, version 1),
``$7$ITERATIONS$SALT$HASH`` (PBKDF2 with HMAC-SHA-512, version 2.0) and argon2 (version 2.1), salt
and hash of the first two in Base64.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os
import re
from typing import NamedTuple

MAX_ITERATIONS = 10_000_000
"""More iterations would occupy a thread for seconds with each login: assumed to be a mistake."""

_DIGEST = 64
_SALTS = range(8, 129)
_SHA512 = re.compile(r"\$6\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)", re.ASCII)
_PBKDF2 = re.compile(r"\$7\$([1-9][0-9]{0,8})\$([A-Za-z0-9+/=]+)\$([A-Za-z0-9+/=]+)", re.ASCII)


class _Hash(NamedTuple):
    iterations: int
    """0: one SHA-512."""
    salt: bytes
    digest: bytes


def is_mosquitto_hash(text: str) -> bool:
    """Return whether ``text`` is a hash in Mosquitto's format, other than argon2."""
    return _parsed(text) is not None


def mosquitto_hash_kind(text: str) -> str:
    """Return the algorithm of a hash; empty if it is not in Mosquitto's format."""
    parsed = _parsed(text)
    if parsed is None:
        return ""
    return f"pbkdf2-sha512, {parsed.iterations} rounds" if parsed.iterations else "sha512"


def verify(stored: str, password: bytes) -> bool:
    """Return whether ``stored`` is the hash of ``password``; see :func:`is_mosquitto_hash`."""
    parsed = _parsed(stored)
    if parsed is None:
        return False
    same = hmac.compare_digest(_digest(password, parsed.salt, parsed.iterations), parsed.digest)
    # HMAC pads its key with zeros: "secret" and "secret\0" would be the same password.
    return same and not (parsed.iterations and password.endswith(b"\0"))


def parameters(stored: str) -> str:
    """Return kind and cost of a hash: hashes with equal ones take the same time."""
    return stored.rsplit("$", 2)[0]


def dummy_hash(stored: str) -> str:
    """Return a hash of a random password that takes the same time as ``stored``."""
    parsed = _parsed(stored)
    iterations, size = (parsed.iterations, len(parsed.salt)) if parsed is not None else (0, 12)
    salt = os.urandom(size)
    digest = _digest(os.urandom(16), salt, iterations)
    parts = (parameters(stored), *(base64.b64encode(part).decode() for part in (salt, digest)))
    return "$".join(parts)


def _digest(password: bytes, salt: bytes, iterations: int) -> bytes:
    if iterations:
        return hashlib.pbkdf2_hmac("sha512", password, salt, iterations)
    return hashlib.sha512(password + salt).digest()


def _parsed(text: str) -> _Hash | None:
    match = _SHA512.fullmatch(text) or _PBKDF2.fullmatch(text)
    if match is None:
        return None
    *count, salt_text, digest_text = match.groups()
    iterations = int(count[0]) if count else 0
    try:
        salt, digest = (base64.b64decode(part, validate=True) for part in (salt_text, digest_text))
    except binascii.Error:
        return None
    fits = len(salt) in _SALTS and len(digest) == _DIGEST and iterations <= MAX_ITERATIONS
    return _Hash(iterations, salt, digest) if fits else None
