"""Authentication backends: each claims the logins that it decides about.

The chain (:mod:`actors.authn.chain`) asks the first backend that claims a login, and no other: what
one rejects no other accepts. A new way to log in is a class with the interface :class:`Backend`,
and a place in the list that :func:`backends` returns.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, Protocol

from actors.authn.credentials import AuthResult, Source, Verdict
from actors.authn.jwt_tokens import looks_like_token

if TYPE_CHECKING:
    from actors.authn.credentials import Credentials

_ANONYMOUS: Final = Verdict(AuthResult.ACCEPTED)
_CLAIMED: Final = Verdict(AuthResult.ACCEPTED, claimed=True)
_NOT_ANONYMOUS: Final = Verdict(AuthResult.NOT_AUTHORISED, reason="no user name")
_NO_SOURCE: Final = Verdict(
    AuthResult.NOT_AUTHORISED, reason="no users are set, and the listener is not for anonymous ones"
)
_NO_TOKEN: Final = Verdict(AuthResult.BAD_CREDENTIALS, reason="the password is no token")
_FAILED: Final = Verdict(AuthResult.UNAVAILABLE, reason="the check failed")


class TokenSource(Source, Protocol):
    """A source that can tell for which user a token claims to be."""

    def claimed_user(self, token: bytes) -> str:
        """Return the user that a token names, without work and unverified; may be empty."""


class Users(Source, Protocol):
    """A source that can tell whether a user is its own, without work."""

    @property
    def user_count(self) -> int:
        """The number of users."""

    def knows(self, username: str) -> bool:
        """Return whether this source decides about the user."""

    def holds(self, verdict: Verdict) -> bool:
        """Return, without work, whether what a login was accepted by is still valid."""

    def verifying(self, credentials: Credentials) -> bool:
        """Return whether the work on these credentials has begun and will be finished anyway."""


class Backend:
    """Decides about the logins that it claims.

    This base class decides without work; one that needs a :class:`Source` passes it on.
    """

    method: str
    """The method of a login in the metrics."""
    guessable = False
    """Credentials could be guessed: failures count for the login backoff."""

    def __init__(self, source: Source | None = None) -> None:
        self._source = source

    @property
    def user_count(self) -> int:
        """The number of users that it knows by itself."""
        return 0

    def claims(self, credentials: Credentials) -> bool:
        """Return whether this backend decides about a login."""
        raise NotImplementedError

    def user_of(self, credentials: Credentials) -> str | None:
        """Return the user that a login is for, verified or not; None: an anonymous client."""
        return credentials.username

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict if it is known without work, else None: await :meth:`check`."""
        return self._source.check_now(credentials) if self._source is not None else _FAILED

    async def check(self, credentials: Credentials) -> Verdict:
        """Return the verdict; may take a while, during which the event loop is free."""
        return await self._source.check(credentials) if self._source is not None else _FAILED

    def holds(self, _verdict: Verdict) -> bool:
        """Return, without work, whether what a login was accepted by is still valid here."""
        return False

    def verifying(self, _credentials: Credentials) -> bool:
        """Return whether the work on these credentials has begun and will be finished anyway."""
        return False

    def close(self) -> None:
        """Let threads and connections end once the checks that have begun are done."""
        if self._source is not None:
            self._source.close()


class CertificateBackend(Backend):
    """Accepts the user of a client certificate; ``ask`` may add groups and permissions."""

    method = "certificate"

    def claims(self, credentials: Credentials) -> bool:
        """Claim logins with the user of a certificate."""
        return credentials.certificate_user is not None

    def user_of(self, credentials: Credentials) -> str | None:
        """Return the user of the certificate."""
        return credentials.certificate_user

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Accept the user, unless the source is to be asked as well."""
        if self._source is not None:
            return self._source.check_now(credentials)
        return Verdict(AuthResult.ACCEPTED, credentials.certificate_user)

    def close(self) -> None:
        """Do nothing: the source is that of another backend."""


class AnonymousBackend(Backend):
    """Accepts clients that name no user, where the listener is open to them.

    ``claimed``: they are taken for whom they say they are.
    """

    method = "anonymous"

    def __init__(self, *, claimed: bool) -> None:
        super().__init__()
        self._accepted = _CLAIMED if claimed else _ANONYMOUS

    def claims(self, credentials: Credentials) -> bool:
        """Claim logins without a user name."""
        return credentials.username is None

    def check_now(self, credentials: Credentials) -> Verdict:
        """Accept the client where the listener is open to anonymous ones."""
        return self._accepted if credentials.allow_anonymous else _NOT_ANONYMOUS


class TokenBackend(Backend):
    """Verifies JSON Web Tokens. ``sole``: it also rejects every password that is no token."""

    method = "token"
    guessable = True

    def __init__(self, tokens: TokenSource, *, sole: bool) -> None:
        super().__init__(tokens)
        self._tokens = tokens
        self._sole = sole

    def claims(self, credentials: Credentials) -> bool:
        """Claim passwords that look like tokens."""
        return self._sole or looks_like_token(credentials.password)

    def user_of(self, credentials: Credentials) -> str | None:
        """Return the user name, or else the user that the token claims to be for.

        Nothing of that is verified yet: a bad token is held against that user alone, not against
        all who show tokens at that address.
        """
        if credentials.username == "" and credentials.password is not None:
            return self._tokens.claimed_user(credentials.password)
        return credentials.username

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict if it is known without work."""
        if not looks_like_token(credentials.password):
            return _NO_TOKEN
        return self._tokens.check_now(credentials)


class PasswordBackend(Backend):
    """Verifies passwords of a file. ``sole``: it also decides about users that it does not know."""

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

    def claims(self, credentials: Credentials) -> bool:
        """Claim logins of the users of the file."""
        return self._sole or self._users.knows(credentials.username or "")

    def holds(self, verdict: Verdict) -> bool:
        """Return whether the password in the file is the one that a login was accepted by."""
        return self._users.holds(verdict)

    def verifying(self, credentials: Credentials) -> bool:
        """Return whether a password is being verified at present."""
        return self._users.verifying(credentials)


class CalloutBackend(Backend):
    """Asks a service over NATS about all who name a user."""

    method = "callout"
    guessable = True

    def claims(self, _credentials: Credentials) -> bool:
        """Claim every login that comes this far."""
        return True


class UnverifiedBackend(Backend):
    """Accepts user names unseen where nothing verifies any, if the listener is open.

    ``claimed``: clients are taken for whom they say they are; right only where nothing depends on
    it.
    """

    method = "none"

    def __init__(self, *, claimed: bool) -> None:
        super().__init__()
        self._claimed = claimed

    def claims(self, _credentials: Credentials) -> bool:
        """Claim every login that comes this far."""
        return True

    def check_now(self, credentials: Credentials) -> Verdict:
        """Accept the client where the listener is open to anonymous ones."""
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
    """Return the backends of a broker, in the order in which they may claim a login.

    ``claimed_names``: while nothing verifies a user name, clients are taken for whom they say they
    are. ``ask_certified``: users from certificates are asked about by the callout as well.
    """
    nothing_verifies = tokens is None and passwords is None and callout is None
    found: list[Backend] = [
        CertificateBackend(callout if ask_certified else None),
        AnonymousBackend(claimed=claimed_names and nothing_verifies),
    ]
    if tokens is not None:
        found.append(TokenBackend(tokens, sole=passwords is None and callout is None))
    if passwords is not None:
        found.append(PasswordBackend(passwords, sole=callout is None))
    if callout is not None:
        found.append(CalloutBackend(callout))
    if nothing_verifies:
        found.append(UnverifiedBackend(claimed=claimed_names))
    return found
