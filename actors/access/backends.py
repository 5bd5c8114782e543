"""Authentication backends, each of which handles some logins.

:mod:`actors.access.backend_selection` asks only the first backend that handles a login: there is no
fallback to another one. A new backend is an entry in the list of :func:`make_backends`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from actors.access.credentials import AuthResult, Credentials, Source, Verdict
from actors.access.jwt_tokens import looks_like_token

if TYPE_CHECKING:
    from actors.access.jwt_tokens import Tokens
    from actors.access.passwords import PasswordFile

_NOT_ANONYMOUS: Final = Verdict(AuthResult.NOT_AUTHORISED, reason="no user name")
_NO_SOURCE: Final = Verdict(
    AuthResult.NOT_AUTHORISED, reason="no users are set, and anonymous clients are not allowed"
)
_NO_TOKEN: Final = Verdict(AuthResult.BAD_CREDENTIALS, reason="the password is not a token")
_FAILED: Final = Verdict(AuthResult.UNAVAILABLE, reason="the check failed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """Authenticates the logins that it handles."""

    method: str
    """The method of a login in the metrics."""
    handles: Callable[[Credentials], bool]
    """Returns whether this backend handles a login."""
    check_now: Callable[[Credentials], Verdict | None]
    """Returns the verdict if it is known immediately; otherwise None: then ``source`` is asked."""
    source: Source | None = None
    users: PasswordFile | None = None
    """The source, if it is a database of users."""
    user_of: Callable[[Credentials], str | None] = attrgetter("username")
    """Returns the user of a login, verified or not; None: an anonymous client."""
    guessable: bool = False
    """Whether the credentials can be guessed: then failures count for the login backoff."""

    async def check(self, credentials: Credentials) -> Verdict:
        """Return the verdict; may take a while without blocking the event loop."""
        return await self.source.check(credentials) if self.source is not None else _FAILED


def _certificate_backend(source: Source | None) -> Backend:
    """Accept the user of a client certificate; ``source`` may add groups and permissions."""

    def check_now(credentials: Credentials) -> Verdict | None:
        if source is not None:
            return source.check_now(credentials)
        return Verdict(AuthResult.ACCEPTED, credentials.certificate_user)

    return Backend(
        method="certificate",
        handles=lambda credentials: credentials.certificate_user is not None,
        check_now=check_now,
        source=source,
        user_of=attrgetter("certificate_user"),
    )


def _anonymous_backend(*, claimed: bool, tokens: bool) -> Backend:
    """Accept clients without a user name, if the listener allows anonymous clients.

    There, an empty user name is the same as none, whatever the password, unless that is a token and
    ``tokens`` are verified. ``claimed``: their claimed identity is trusted.
    """
    accepted = Verdict(AuthResult.ACCEPTED, claimed=claimed)

    def handles(credentials: Credentials) -> bool:
        if credentials.username or not credentials.allow_anonymous:
            return credentials.username is None
        named = tokens and credentials.username is not None
        return not (named and looks_like_token(credentials.password))

    return Backend(
        method="anonymous",
        handles=handles,
        check_now=lambda client: accepted if client.allow_anonymous else _NOT_ANONYMOUS,
        user_of=lambda _client: None,
    )


def _token_backend(tokens: Tokens, *, sole: bool) -> Backend:
    """Verify JSON Web Tokens. ``sole``: also reject passwords that are not tokens."""

    def user_of(credentials: Credentials) -> str | None:
        # The user that a token claims is not verified yet: a bad token counts only against that
        # user, not against all clients with tokens at that address.
        if credentials.username == "" and credentials.password is not None:
            return tokens.claimed_user(credentials.password)
        return credentials.username

    def check_now(credentials: Credentials) -> Verdict | None:
        if not looks_like_token(credentials.password):
            return _NO_TOKEN
        return tokens.check_now(credentials)

    return Backend(
        method="token",
        handles=lambda credentials: sole or looks_like_token(credentials.password),
        check_now=check_now,
        source=tokens,
        user_of=user_of,
        guessable=True,
    )


def _unverified_backend(*, claimed: bool) -> Backend:
    """Accept unverified user names if the listener allows anonymous clients.

    ``claimed``: the claimed identity is trusted, which is safe only if nothing depends on it.
    """

    def check_now(credentials: Credentials) -> Verdict:
        if not credentials.allow_anonymous:
            return _NO_SOURCE
        user = credentials.username if claimed else None
        return Verdict(AuthResult.ACCEPTED, user, claimed=claimed)

    return Backend(method="none", handles=lambda _: True, check_now=check_now)


def make_backends(
    *,
    tokens: Tokens | None = None,
    passwords: PasswordFile | None = None,
    callout: Source | None = None,
    claimed_names: bool = False,
    ask_certified: bool = False,
) -> list[Backend]:
    """Return the backends of a broker, in the order in which they are asked.

    ``claimed_names``: claimed user names are trusted while nothing verifies them.
    ``ask_certified``: the callout also authorizes users from certificates.
    """
    nothing_verifies = tokens is None and passwords is None and callout is None
    backends = [
        _certificate_backend(callout if ask_certified else None),
        _anonymous_backend(claimed=claimed_names and nothing_verifies, tokens=tokens is not None),
    ]
    if tokens is not None:
        backends.append(_token_backend(tokens, sole=passwords is None and callout is None))
    if passwords is not None:
        users = passwords
        backends.append(
            Backend(
                method="password",
                handles=lambda login: callout is None or users.knows(login.username or ""),
                check_now=users.check_now,
                source=users,
                users=users,
                guessable=True,
            )
        )
    if callout is not None:
        backends.append(
            Backend(
                method="callout",
                handles=lambda _: True,
                check_now=callout.check_now,
                source=callout,
                guessable=True,
            )
        )
    if nothing_verifies:
        backends.append(_unverified_backend(claimed=claimed_names))
    return backends
