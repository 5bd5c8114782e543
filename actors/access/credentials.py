"""The credentials of a client, and the verdict about them."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeGuard

from actors.access.login_backoff import LoginRank
from actors.access.rules import Rule

if TYPE_CHECKING:
    from actors.access.enhanced import Exchange, Step


LATEST_MS: Final = 253_402_300_799_000
"""The end of the year 9999, the latest time at which a login expires."""
_MAX_NAME: Final = 1024


def is_name(value: object) -> TypeGuard[str]:
    """Return whether a value may be the name of a user or a group from outside."""
    return isinstance(value, str) and 0 < len(value) <= _MAX_NAME and "\0" not in value


class AuthResult(enum.IntEnum):
    """The outcome, as a CONNACK return code (MQTT 3.1.1, table 3.1)."""

    ACCEPTED = 0x00
    UNAVAILABLE = 0x03
    BAD_CREDENTIALS = 0x04
    NOT_AUTHORISED = 0x05


class Credentials(NamedTuple):
    """The credentials of a CONNECT, and its origin."""

    username: str | None
    password: bytes | None
    client_id: str = ""
    address: str = ""
    """Host of the client, without the port; a name for Unix sockets."""
    listener: str = ""
    """Name of the listener."""
    allow_anonymous: bool = False
    """Whether the listener allows clients with neither a user name nor a certificate."""
    certificate_user: str | None = None
    """User of the client certificate, if the listener takes users from certificates."""
    rank: Callable[[], LoginRank] = lambda: LoginRank.NEW
    """Returns the order in which it is verified."""


class Verdict(NamedTuple):
    """The verdict about a CONNECT."""

    result: AuthResult
    user: str | None = None
    """The user, also in all events; None: an anonymous client."""
    groups: tuple[str, ...] = ()
    """Groups of the user according to the backend; the permission file may add some."""
    rules: tuple[Rule, ...] | None = None
    """Permissions that replace those in the file; None: those in the file apply."""
    expires_ms: int = 0
    """When the login expires, Unix time in milliseconds; 0: never."""
    claimed: bool = False
    """Whether nothing was verified: the user is only claimed, and gives no permissions."""
    reason: str = ""
    """The reason for a rejection, for the log: a few words without client input."""
    proof: int | None = None
    """Digest of the hash in the password file that accepted the login; None: another backend
    did."""

    @property
    def accepted(self) -> bool:
        """True if the client is accepted."""
        return self.result is AuthResult.ACCEPTED


class Source(Protocol):
    """Authenticates clients."""

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict if it is known now, otherwise None: ``check`` must be awaited."""

    async def check(self, credentials: Credentials) -> Verdict:
        """Return the verdict; may take a while without blocking the event loop. Never raises."""

    def close(self) -> None:
        """Close threads and connections once the running checks are done."""


class Authenticator(Source, Protocol):
    """The authenticator of a broker; counts verdicts."""

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """Number of logins by method and result."""

    def begin_exchange(
        self, method: str, credentials: Credentials, *, reauthenticates: bool = False
    ) -> Exchange | None:
        """Return a new exchange by a method of enhanced authentication; None: unknown method."""

    async def step(self, exchange: Exchange, data: bytes | None) -> Step:
        """Return the answer to a client in an exchange. Never raises."""

    def holds(self, verdict: Verdict) -> bool:
        """Return, cheaply, whether the credential of an accepted client is still valid.

        True for verdicts without ``proof``.
        """


def login_rank(authenticator: object, credentials: Credentials) -> LoginRank:
    """Return the rank of a login with an authenticator: NEW for one without a backoff."""
    rank: Callable[[Credentials], LoginRank] | None = getattr(authenticator, "rank", None)
    return LoginRank.NEW if rank is None else rank(credentials)
