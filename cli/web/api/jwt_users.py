"""Users with JSON Web Tokens: they read the messages of the past for which they have the right.

The groups of a token may give it a role instead, such as tokens of the web page have.

The keys and the permission file are those of the broker; both are read again when they change. What
a user may read is asked for each message, so that a change also concerns streams that are open.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from cli.web.api.access import JWT_PREFIX
from cli.web.api.problem_types import Unauthorized
from cli.web.tokens import Grant, Role, file_state

if TYPE_CHECKING:
    from actors.access.jwt_tokens import Tokens
    from actors.access.rules import Permissions
    from cli.settings.settings import Settings

OPERATIONS: Final = frozenset({"history", "last", "message"})
"""What they may do."""
_LOOK_SECONDS: Final = 1.0
"""Seconds between two looks at the files."""
_LONGEST_NAME: Final = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class JwtGrant(Grant):
    """The permissions of a user, until the token expires."""

    who: tuple[str, tuple[str, ...], str]
    """User, groups and client identifier."""
    users: JwtUsers

    def may_read(self, topic: str) -> bool:
        """Return whether messages of the past on a topic may be read now.

        Raises Unauthorized once the token has expired, and as the files are read.
        """
        if not self.holds(self.users.now()):
            raise Unauthorized("the token has expired")
        access, raw = self.users.permissions().access(*self.who), topic.encode()
        return access.read[raw] and access.history[raw]

    def may_ask(self, topic_filter: str) -> bool:
        """Return whether the permissions cover a valid filter."""
        access = self.users.permissions().access(*self.who)
        return access.may_subscribe(topic_filter) and access.may_replay(topic_filter)


class JwtUsers:
    """Verifies tokens; ``now`` returns Unix time in seconds."""

    def __init__(self, settings: Settings, now: Callable[[], float] = time.time) -> None:
        """Read the files; raises TokenKeyError and PermissionFileError."""
        self.now = now
        self._settings = settings
        pairs = (entry.rpartition("=") for entry in settings.web_api_jwt_roles)
        self._roles = [(group, Role(role)) for group, _, role in pairs]
        self._files = [file for file in (settings.jwt_keys, settings.permissions) if file]
        self._tokens: Tokens | None = None
        self._permissions: Permissions
        self._look_at = 0.0
        self._read: list[object] = []
        self._read_files()

    def _read_files(self) -> None:
        """Read the files again if they have changed."""
        if time.monotonic() < self._look_at:
            return
        states = [file_state(file) for file in self._files]
        if states != self._read:
            # Only this setting needs these modules.
            from cli.settings.access_files import make_permissions, make_tokens

            permissions, tokens = make_permissions(self._settings), make_tokens(self._settings)
            if self._tokens is not None:
                self._tokens.close()
            self._permissions, self._tokens, self._read = permissions, tokens, states
        self._look_at = time.monotonic() + _LOOK_SECONDS

    def permissions(self) -> Permissions:
        """Return the permissions at present."""
        self._read_files()
        return self._permissions

    @staticmethod
    def is_token(text: str) -> bool:
        """Return whether a text has the form of a JSON Web Token."""
        from actors.access.jwt_tokens import looks_like_token

        return looks_like_token(text.encode("utf-8", "replace"))

    async def grant(self, token: str, address: str) -> Grant | None:
        """Return what a token permits; None: it is not valid."""
        self._read_files()
        if self._tokens is None:
            return None
        from actors.access.credentials import AuthResult, Credentials

        verdict = await self._tokens.check(Credentials(None, token.encode(), address=address))
        if verdict.result != AuthResult.ACCEPTED or verdict.user is None:
            return None
        mark = hashlib.sha256(f"jwt {verdict.user}".encode()).hexdigest()
        shown = f"{JWT_PREFIX}{verdict.user}"
        if len(verdict.user) > _LONGEST_NAME:  # the names of two users differ
            shown = f"{JWT_PREFIX}{verdict.user[: _LONGEST_NAME - 17]}~{mark[:16]}"
        expires = verdict.expires_ms // 1000
        for group, role in self._roles:
            if group in verdict.groups:
                return Grant(shown, role, mark, expires)
        who = verdict.user, verdict.groups, f"$api/{verdict.user}"
        return JwtGrant(shown, Role.VIEW_ALL, mark, expires, who=who, users=self)
