"""The web page's own token in the data directory, which allows everything.

Only the broker's user can read its file. A browser presents a token once, in the URL or the login
form, and then has a cookie. The cookie is derived from the token: a new token ends every login.
Other tokens are in ``cli.web.tokens``.
"""

import contextlib
import hashlib
import hmac
import os
import re
import secrets
from dataclasses import dataclass, field
from pathlib import Path

from protocol.errors import FoldmqError

TOKEN_FILE = "web.token"  # noqa: S105 - the name of a file
"""File in the data directory."""

_MIN = 16
_TOKEN = re.compile(rf"[A-Za-z0-9_.~-]{{{_MIN},200}}")
_PRIVATE = 0o077


class TokenError(FoldmqError):
    """The token file cannot be used."""

    exit_code = 73


@dataclass(frozen=True, slots=True)
class Token:
    """The secret and its file."""

    secret: str = field(repr=False)
    file: Path

    @property
    def cookie(self) -> str:
        """The cookie of a browser that presented the token."""
        return cookie_of(self.secret)

    @property
    def query(self) -> str:
        """The suffix of the page's URL with the token."""
        return f"?token={self.secret}"


def cookie_of(secret: str) -> str:
    """Return the cookie of a token; the token cannot be derived from it."""
    key = secret.encode("utf-8", "replace")
    return hmac.new(key, b"foldmq web", hashlib.sha256).hexdigest()


def new_secret() -> str:
    """Return a new token."""
    return secrets.token_urlsafe(24)


def find_token(file: Path) -> Token:
    """Read the token, or create one if there is none; raises TokenError."""
    try:
        if not file.exists():
            _make(file)
        return Token(_read(file), file)
    except OSError as error:
        raise TokenError(f"{file}: cannot be used: {error.strerror}") from None


def _make(file: Path) -> None:
    """Write a new token atomically; a token created meanwhile is kept."""
    draft = file.with_name(f"{file.name}.{os.getpid()}")
    draft.unlink(missing_ok=True)
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(new_secret() + "\n")
            stream.flush()
            os.fsync(descriptor)
        with contextlib.suppress(FileExistsError):
            file.hardlink_to(draft)
    finally:
        draft.unlink()


def _read(file: Path) -> str:
    secret = file.read_bytes().decode("ascii", "replace").strip()
    if not _TOKEN.fullmatch(secret):
        raise TokenError(
            f"{file}: must contain a token of at least {_MIN} letters, digits, - _ . ~; remove "
            "the file to create a new one"
        )
    if file.stat().st_mode & _PRIVATE:
        file.chmod(0o600)
    return secret
