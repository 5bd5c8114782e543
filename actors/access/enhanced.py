"""Enhanced authentication (MQTT 5, section 4.12): methods, and exchanges of several steps.

A step consists of Authentication Data from the client (CONNECT or AUTH) and the answer: a
:class:`Challenge`, or the :class:`Outcome`. The state of a method between two steps is kept in the
:class:`Exchange`, so that a reload may replace the methods at any time.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, TypeAlias

from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.scram import SCRAM_SHA_256, ScramError, ScramExchange, read_client_first

if TYPE_CHECKING:
    from actors.access.passwords import PasswordFile, ScramUser

_OTHER_USER: Final = Verdict(
    AuthResult.BAD_CREDENTIALS, reason="the user differs from that of CONNECT or the certificate"
)


class Challenge(NamedTuple):
    """A challenge that the client must answer."""

    data: bytes | None
    reason: str | None = None
    """The Reason String of the AUTH: a sentence for the client."""


class Outcome(NamedTuple):
    """The end of an exchange."""

    verdict: Verdict
    data: bytes | None = None
    """Authentication Data for an accepted client, in the CONNACK or the last AUTH."""


Step: TypeAlias = Challenge | Outcome


class Exchange:
    """One authentication of a client by a method."""

    __slots__ = ("credentials", "in_turn", "method", "progress", "reauthenticates", "user")

    def __init__(
        self, method: str, credentials: Credentials, *, reauthenticates: bool = False
    ) -> None:
        self.method = method
        self.credentials = credentials
        """The credentials of the CONNECT; for re-authentication, with the client's user."""
        self.reauthenticates = reauthenticates
        """Whether the client is already connected."""
        self.in_turn = False
        """Whether it has waited for its turn after failed logins: see the login backoff."""
        self.user: str | None = credentials.username
        """The user as the login backoff counts it: verified or not."""
        self.progress: Any = None
        """State of the method between steps; None before the first one."""


class Method(Protocol):
    """A method of enhanced authentication."""

    label: str
    """The method's label in the metrics."""

    async def step(self, exchange: Exchange, data: bytes | None) -> Step:
        """Return the answer to the client; sets ``exchange.user`` as soon as it is known."""


class _Pending(NamedTuple):
    """A SCRAM exchange that waits for the last message of its client."""

    login: ScramExchange
    user: ScramUser


class ScramMethod:
    """SCRAM-SHA-256 with the users of the password file.

    A user name in CONNECT, and the user of a certificate, must equal the user that the exchange
    proves.
    """

    label = "scram"

    def __init__(self, users: PasswordFile) -> None:
        self._users = users

    async def step(self, exchange: Exchange, data: bytes | None) -> Step:
        """Return the answer without waiting: no step takes longer than a few microseconds."""
        pending: _Pending | None = exchange.progress
        try:
            if pending is None:
                return self._begin(exchange, data or b"")
            server_final = pending.login.verify(data or b"")
        except ScramError as error:
            return Outcome(Verdict(AuthResult.BAD_CREDENTIALS, reason=str(error)))
        user = pending.user
        if not exchange.reauthenticates and not _is_same_user(exchange, user.name):
            return Outcome(_OTHER_USER)
        verdict = Verdict(AuthResult.ACCEPTED, user.name, proof=user.proof)
        return Outcome(verdict, server_final)

    def _begin(self, exchange: Exchange, data: bytes) -> Challenge:
        first = read_client_first(data)
        user = self._users.scram_user(first.user)
        login = ScramExchange(first, user.keys)
        exchange.user = first.user
        exchange.progress = _Pending(login, user)
        return Challenge(login.challenge)


def _is_same_user(exchange: Exchange, user: str) -> bool:
    """Return whether the proven user agrees with the user of CONNECT and of the certificate."""
    certified, named = exchange.credentials.certificate_user, exchange.credentials.username
    return certified in (None, user) and named in (None, "", exchange.user, user)


def make_methods(
    users: PasswordFile | None, external: tuple[str, Method] | None = None
) -> dict[str, Method]:
    """Return the methods of a broker by name; ``external`` is another one, with its name."""
    methods: dict[str, Method] = {}
    if users is not None:
        methods[SCRAM_SHA_256] = ScramMethod(users)
    if external is not None:
        methods[external[0]] = external[1]
    return methods
