"""Authentication backends, each of which handles some logins.

:mod:`actors.access.backend_selection` asks only the first backend that handles a login: there is no
fallback to another one. A new backend is a class with the interface :class:`Backend`, and an entry
in the list of :func:`make_backends`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final, Protocol

from actors.access.credentials import AuthResult, Source, Verdict
from actors.access.jwt_tokens import looks_like_token

if TYPE_CHECKING:
    from actors.access.credentials import Credentials

_ANONYMOUS: Final = Verdict(AuthResult.ACCEPTED)
_CLAIMED: Final = Verdict(AuthResult.ACCEPTED, claimed=True)
_NOT_ANONYMOUS: Final = Verdict(AuthResult.NOT_AUTHORISED, reason="no user name")
_NO_SOURCE: Final = Verdict(
    AuthResult.NOT_AUTHORISED, reason="no users are set, and anonymous clients are not allowed"
)
_NO_TOKEN: Final = Verdict(AuthResult.BAD_CREDENTIALS, reason="the password is not a token")
_FAILED: Final = Verdict(AuthResult.UNAVAILABLE, reason="the check failed")


class TokenSource(Source, Protocol):
    """A source that can return the user claimed by a token."""

    def claimed_user(self, token: bytes) -> str:
        """Return the user claimed by a token, cheaply and unverified; may be empty."""


class Users(Source, Protocol):
    """A source that knows its users."""

    @property
    def user_count(self) -> int:
        """The number of users."""

    def knows(self, username: str) -> bool:
        """Return whether this source has the user."""

    def holds(self, verdict: Verdict) -> bool:
        """Return, cheaply, whether the credential of an accepted login is still valid."""

    def verifying(self, credentials: Credentials) -> bool:
        """Return whether verification of these credentials is running and cannot be cancelled."""


class Backend(ABC):
    """Authenticates the logins that it handles.

    A backend that needs a :class:`Source` passes each login on to it; others decide immediately.
    """

    method: str
    """The method of a login in the metrics."""
    guessable = False
    """Whether the credentials can be guessed: then failures count for the login backoff."""

    def __init__(self, source: Source | None = None) -> None:
        self._source = source

    @property
    def user_count(self) -> int:
        """The number of users in the backend's database; 0 if it has none."""
        return 0

    @abstractmethod
    def handles(self, credentials: Credentials) -> bool:
        """Return whether this backend handles a login."""

    def user_of(self, credentials: Credentials) -> str | None:
        """Return the user of a login, verified or not; None: an anonymous client."""
        return credentials.username

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict if it is known immediately, otherwise None: await :meth:`check`."""
        return self._source.check_now(credentials) if self._source is not None else _FAILED

    async def check(self, credentials: Credentials) -> Verdict:
        """Return the verdict; may take a while without blocking the event loop."""
        return await self._source.check(credentials) if self._source is not None else _FAILED

    def holds(self, _verdict: Verdict) -> bool:
        """Return, cheaply, whether the credential of an accepted login is still valid here."""
        return False

    def verifying(self, _credentials: Credentials) -> bool:
        """Return whether work on these credentials has begun and can no longer be cancelled."""
        return False

    def close(self) -> None:
        """Close threads and connections once the running checks are done."""
        if self._source is not None:
            self._source.close()


class CertificateBackend(Backend):
    """Accepts the user of a client certificate; ``source`` may add groups and permissions."""

    method = "certificate"

    def handles(self, credentials: Credentials) -> bool:
        """Handle logins with the user of a certificate."""
        return credentials.certificate_user is not None

    def user_of(self, credentials: Credentials) -> str | None:
        """Return the user of the certificate."""
        return credentials.certificate_user

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Accept the user, unless the source must be asked as well."""
        if self._source is not None:
            return self._source.check_now(credentials)
        return Verdict(AuthResult.ACCEPTED, credentials.certificate_user)

    def close(self) -> None:
        """Do nothing: the source belongs to another backend."""


class AnonymousBackend(Backend):
    """Accepts clients without a user name, if the listener allows anonymous clients.

    There, an empty user name is the same as none, whatever the password, unless that is a token and
    ``tokens`` are verified. ``claimed``: their claimed identity is trusted.
    """

    method = "anonymous"

    def __init__(self, *, claimed: bool, tokens: bool = False) -> None:
        super().__init__()
        self._accepted = _CLAIMED if claimed else _ANONYMOUS
        self._tokens = tokens

    def handles(self, credentials: Credentials) -> bool:
        """Handle logins without a user name."""
        if credentials.username or not credentials.allow_anonymous:
            return credentials.username is None
        named = self._tokens and credentials.username is not None
        return not (named and looks_like_token(credentials.password))

    def user_of(self, _credentials: Credentials) -> None:
        """Return None: there is no user."""

    def check_now(self, credentials: Credentials) -> Verdict:
        """Accept the client if the listener allows anonymous clients."""
        return self._accepted if credentials.allow_anonymous else _NOT_ANONYMOUS


class TokenBackend(Backend):
    """Verifies JSON Web Tokens. ``sole``: it also rejects passwords that are not tokens."""

    method = "token"
    guessable = True

    def __init__(self, tokens: TokenSource, *, sole: bool) -> None:
        super().__init__(tokens)
        self._tokens = tokens
        self._sole = sole

    def handles(self, credentials: Credentials) -> bool:
        """Handle logins with a password that looks like a token."""
        return self._sole or looks_like_token(credentials.password)

    def user_of(self, credentials: Credentials) -> str | None:
        """Return the user name, or else the user claimed by the token.

        It is not verified yet: a bad token counts only against that user, not against all clients
        with tokens at that address.
        """
        if credentials.username == "" and credentials.password is not None:
            return self._tokens.claimed_user(credentials.password)
        return credentials.username

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict if it is known immediately."""
        if not looks_like_token(credentials.password):
            return _NO_TOKEN
        return self._tokens.check_now(credentials)


class PasswordBackend(Backend):
    """Verifies passwords of a file. ``sole``: it also rejects unknown users."""

    method = "password"
    guessable = True

    def __init__(self, users: Users, *, sole: bool) -> None:
        super().__init__(users)
        self._users = users
        self._sole = sole

    @property
    def user_count(self) -> int:
        """The number of users in the file."""
        return self._users.user_count

    def handles(self, credentials: Credentials) -> bool:
        """Handle logins of users in the file."""
        return self._sole or self._users.knows(credentials.username or "")

    def holds(self, verdict: Verdict) -> bool:
        """Return whether the file still has the password of an accepted login."""
        return self._users.holds(verdict)

    def verifying(self, credentials: Credentials) -> bool:
        """Return whether a password is being verified now."""
        return self._users.verifying(credentials)


class CalloutBackend(Backend):
    """Asks a service over NATS about all logins with a user name."""

    method = "callout"
    guessable = True

    def handles(self, _credentials: Credentials) -> bool:
        """Handle every login that no other backend handles."""
        return True


class UnverifiedBackend(Backend):
    """Accepts unverified user names if the listener allows anonymous clients.

    ``claimed``: the claimed identity is trusted, which is safe only if nothing depends on it.
    """

    method = "none"

    def __init__(self, *, claimed: bool) -> None:
        super().__init__()
        self._claimed = claimed

    def handles(self, _credentials: Credentials) -> bool:
        """Handle every login that no earlier backend handles."""
        return True

    def check_now(self, credentials: Credentials) -> Verdict:
        """Accept the client if the listener allows anonymous clients."""
        if not credentials.allow_anonymous:
            return _NO_SOURCE
        if not self._claimed:
            return _ANONYMOUS
        return Verdict(AuthResult.ACCEPTED, credentials.username, claimed=True)


def make_backends(
    *,
    tokens: TokenSource | None = None,
    passwords: Users | None = None,
    callout: Source | None = None,
    claimed_names: bool = False,
    ask_certified: bool = False,
) -> list[Backend]:
    """Return the backends of a broker, in the order in which they are asked.

    ``claimed_names``: claimed user names are trusted while nothing verifies them.
    ``ask_certified``: the callout also authorizes users from certificates.
    """
    nothing_verifies = tokens is None and passwords is None and callout is None
    backends: list[Backend] = [
        CertificateBackend(callout if ask_certified else None),
        AnonymousBackend(claimed=claimed_names and nothing_verifies, tokens=tokens is not None),
    ]
    if tokens is not None:
        backends.append(TokenBackend(tokens, sole=passwords is None and callout is None))
    if passwords is not None:
        backends.append(PasswordBackend(passwords, sole=callout is None))
    if callout is not None:
        backends.append(CalloutBackend(callout))
    if nothing_verifies:
        backends.append(UnverifiedBackend(claimed=claimed_names))
    return backends
