"""The tokens of the web page: their permissions and expiry.

The first is the page's own, in ``web.token`` (``cli.web.own_token``): it permits everything
and does not expire. Operators create others with a name, a role and an expiry. These are in a file
of lines::

    ann view 2026-12-31T23:59:59Z 1c5a...

with name, role, expiry (or ``never``) and mark. The mark is the SHA-256 of the cookie of a browser
that presented the token, and the cookie is derived from the token: the file contains nothing to log
in with. A token is random, so no slow hash is needed.
"""

import enum
import hashlib
import hmac
import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import structlog

from cli.web.own_token import TOKEN_FILE, Token, cookie_of
from eventstore.display import escaped
from protocol.errors import FoldmqError

TOKENS_FILE = "web.tokens"
"""File in the data directory."""
MAX_TOKENS = 1000

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]{0,63}")
_MARK = re.compile(r"[0-9a-f]{64}")
_NEVER = "never"
_TIME = "%Y-%m-%dT%H:%M:%SZ"
_MAX_BYTES = 1 << 20
_LOOK_SECONDS = 1.0

log = structlog.get_logger("foldmq")


class Role(enum.StrEnum):
    """The permissions of a token; each role but ``publish`` includes the previous ones."""

    VIEW = "view"
    """View everything but payloads."""
    VIEW_ALL = "view-all"
    """View payloads as well."""
    OPERATE = "operate"
    """Make changes as well."""
    PUBLISH = "publish"
    """Publish messages through the HTTP API, and nothing else."""

    @property
    def views(self) -> bool:
        """Return whether pages and answers are shown at all."""
        return self is not Role.PUBLISH

    @property
    def sees_payloads(self) -> bool:
        """Return whether payloads are shown."""
        return self in (Role.VIEW_ALL, Role.OPERATE)

    @property
    def makes_changes(self) -> bool:
        """Return whether requests may change something."""
        return self is Role.OPERATE


class BadTokens(FoldmqError):  # noqa: N818 - named for the condition, as its siblings
    """The token file is invalid; the text says what to correct."""

    exit_code = 78


@dataclass(frozen=True, slots=True)
class Grant:
    """The permissions of a token, without its secret."""

    name: str
    role: Role
    mark: str
    expires: int | None = None
    """Expiry as Unix time in seconds; None: never."""

    def holds(self, now: float) -> bool:
        """Return whether it has not expired."""
        return self.expires is None or now < self.expires

    @property
    def line(self) -> str:
        """The line of the file."""
        return f"{self.name} {self.role} {ends(self.expires)} {self.mark}"


def ends(expires: int | None) -> str:
    """Return the expiry of a token as in the file."""
    if expires is None:
        return _NEVER
    return datetime.fromtimestamp(expires, UTC).strftime(_TIME)


def mark_of(cookie: str) -> str:
    """Return the mark of a cookie."""
    return hashlib.sha256(cookie.encode("utf-8", "replace")).hexdigest()


def name_problem(name: str) -> str | None:
    """Return the error in the name of a token, or None."""
    if name == TOKEN_FILE:
        return "reserved for the token in web.token"
    if not _NAME.fullmatch(name):
        return "must have at most 64 letters, digits, - _ . @, and begin with a letter or digit"
    return None


def parse(path: Path, content: str) -> dict[str, Grant]:
    """Return the tokens of a file by name; raises BadTokens for the first invalid line."""
    grants: dict[str, Grant] = {}
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip() or line.startswith("#"):
            continue
        grant = _grant(f"{path}, line {number}", line.split())
        if grant.name in grants:
            raise BadTokens(f"{path}, line {number}: {escaped(grant.name)} is a duplicate")
        grants[grant.name] = grant
    if len(grants) > MAX_TOKENS:
        raise BadTokens(f"{path}: has {len(grants)} tokens, more than the maximum of {MAX_TOKENS}")
    return grants


def _grant(where: str, fields: list[str]) -> Grant:
    if len(fields) != 4:
        raise BadTokens(
            f"{where}: must be NAME ROLE EXPIRY MARK, as written by 'foldmq web-token add'"
        )
    name, role, end, mark = fields
    problem = name_problem(name)
    if problem is not None:
        raise BadTokens(f"{where}: name {escaped(name, 80)}: {problem}")
    if role not in list(Role):
        raise BadTokens(f"{where}: role {escaped(role, 40)}: must be one of {', '.join(Role)}")
    if not _MARK.fullmatch(mark):
        raise BadTokens(f"{where}: the mark must have 64 hexadecimal digits")
    return Grant(name, Role(role), mark, _end(where, end))


def _end(where: str, text: str) -> int | None:
    if text == _NEVER:
        return None
    try:
        return int(datetime.strptime(text, _TIME).replace(tzinfo=UTC).timestamp())
    except ValueError:
        raise BadTokens(
            f"{where}: expiry {escaped(text, 40)}: must be a time such as 2026-12-31T23:59:59Z, "
            f"or {_NEVER}"
        ) from None


def read(path: Path) -> dict[str, Grant]:
    """Return the tokens of a file, none if it is missing; raises BadTokens."""
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadTokens(f"{path}: cannot be read: {error.strerror}") from None
    if len(data) > _MAX_BYTES:
        raise BadTokens(f"{path}: is larger than {_MAX_BYTES} bytes")
    return parse(path, data.decode("utf-8-sig", "replace"))


def file_state(file: Path) -> object:
    """Return what changes with the content of a file; of one that cannot be read, why."""
    try:
        state = file.stat()
    except OSError as error:
        return error.errno
    return state.st_mtime_ns, state.st_size, state.st_ino


class Tokens:
    """The page's own token, and those of a file that is reread when it changes.

    While the file is invalid, only the page's own token is accepted: a removed token must not
    become valid through an error in another line.
    """

    def __init__(self, own: Token, file: Path | None, now: Callable[[], float] = time.time) -> None:
        self.own = own
        self.file = file
        self._now = now
        self._first = Grant(TOKEN_FILE, Role.OPERATE, mark_of(own.cookie))
        self._grants: Mapping[str, Grant] = {}
        self._seen: object = None
        self._look_at = 0.0

    def of_token(self, token: str) -> Grant | None:
        """Return the permissions of a token, even if it has expired; None if it is unknown."""
        return self.of_cookie(cookie_of(token.strip()))

    def of_cookie(self, cookie: str) -> Grant | None:
        """Return the permissions of the token that a cookie was derived from, or None."""
        self._read_again()
        mark = mark_of(cookie)
        match = None
        for grant in (self._first, *self._grants.values()):
            if hmac.compare_digest(grant.mark, mark):
                match = grant
        return match

    def holds(self, grant: Grant) -> bool:
        """Return whether a token has not expired."""
        return grant.holds(self._now())

    def has(self, grant: Grant) -> bool:
        """Return whether a token has still these permissions; the file is looked at each second."""
        now = time.monotonic()
        if now >= self._look_at:
            self._look_at = now + _LOOK_SECONDS
            self._read_again()
        return grant in (self._first, self._grants.get(grant.name))

    def seconds_left(self, grant: Grant, most: int) -> int:
        """Return the remaining lifetime of a token in seconds, at most ``most``."""
        if grant.expires is None:
            return most
        return max(0, min(most, int(grant.expires - self._now())))

    def _read_again(self) -> None:
        if self.file is None:
            return
        seen = file_state(self.file)
        if seen == self._seen:
            return
        before, self._seen = self._grants, seen
        try:
            self._grants = read(self.file)
        except BadTokens as error:
            self._grants = {}
            log.error(  # noqa: TRY400 -- its message says it all
                "web tokens are not accepted until their file is corrected", reason=str(error)
            )
            return
        if before != self._grants:
            log.info("web tokens loaded", file=str(self.file), tokens=len(self._grants))
