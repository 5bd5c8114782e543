"""Signatures of requests by Standard Webhooks (https://www.standardwebhooks.com)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from typing import Final

_PREFIX: Final = "whsec_"
_LEAST_BYTES, _MOST_BYTES = 24, 64
_MOST_SECRETS = 2


class BadSecret(ValueError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A file has no valid signing secrets or token; the text says why."""


def read_secrets(text: str) -> list[bytes]:
    """Return the secrets in a file, one or two, each in a line. Raises BadSecret."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not 0 < len(lines) <= _MOST_SECRETS:
        raise BadSecret("must have one line with a secret, or two while it is being changed")
    return [_secret(line) for line in lines]


def _secret(line: str) -> bytes:
    try:
        secret = base64.b64decode(line.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise BadSecret(f"a secret must be {_PREFIX} and bytes in Base64") from None
    if not line.startswith(_PREFIX) or not _LEAST_BYTES <= len(secret) <= _MOST_BYTES:
        raise BadSecret(
            f"a secret must be {_PREFIX} and {_LEAST_BYTES} to {_MOST_BYTES} bytes in Base64"
        )
    return secret


def read_token(text: str) -> str:
    """Return the token in a file. Raises BadSecret."""
    token = text.strip()
    if not token or not token.isascii() or not token.isprintable():
        raise BadSecret("must have one line with a token")
    return token


def signed_headers(
    identifier: str, seconds: int, body: bytes, secrets: list[bytes]
) -> dict[str, str]:
    """Return the headers that sign a request at a time in Unix seconds; one for each secret."""
    content = f"{identifier}.{seconds}.".encode() + body
    signatures = (
        base64.b64encode(hmac.digest(secret, content, hashlib.sha256)).decode()
        for secret in secrets
    )
    headers = {"webhook-id": identifier, "webhook-timestamp": str(seconds)}
    if secrets:
        headers["webhook-signature"] = " ".join(f"v1,{signature}" for signature in signatures)
    return headers
