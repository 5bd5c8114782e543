"""Selects the one backend that authenticates a CONNECT.

The order of the backends, and the logins that each handles, are in :mod:`actors.access.backends`: a
client certificate comes first, if the listener takes users from certificates; a password that looks
like a token goes to the token backend, if there is one; users in the password file go to the file,
all others to the auth callout, if configured. A client without credentials is accepted only if the
listener allows anonymous clients. Only the method decides on a CONNECT with an Authentication
Method (MQTT 5), see :mod:`actors.access.enhanced`.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

import structlog

from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.access.enhanced import Exchange, Method, Outcome, Step
from actors.access.login_backoff import LoginBackoff, LoginRank, network

if TYPE_CHECKING:
    from actors.access.backends import Backend

LOCKED_OUT: Final = Verdict(
    AuthResult.BAD_CREDENTIALS, reason="refused for a while after failed logins"
)
"""The same answer as for a wrong password: an attacker does not learn that a guess was right."""

_FAILED: Final = Verdict(AuthResult.UNAVAILABLE, reason="the check failed")
_NO_METHOD: Final = Verdict(AuthResult.UNAVAILABLE, reason="the method is no longer configured")

_LATE: Final = 5.0
"""Seconds before the answer to a wrong login from an address with many failures. Who guesses over
many connections there waits for the answers most of the time, and others find room to log in."""
_MAX_ABANDONED: Final = 100
"""Maximum number of checks that continue after their client has left. Few passwords are verified
concurrently, so more checks than that are for the same credentials."""

log = structlog.get_logger("foldmq")

T = TypeVar("T")


class BackendSelection:
    """The authenticator of a broker: its backends, and the login backoff before them.

    ``counts`` initializes :attr:`counts` after a reload.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        methods: Mapping[str, Method] | None = None,
        backoff: LoginBackoff | None = None,
        counts: Counter[tuple[str, str]] | None = None,
        hides_users: bool = False,
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter() if counts is None else counts
        """Number of logins by method and result.

        Methods: certificate, token, password, scram, callout, anonymous, none. Results: accepted,
        refused, unavailable, backoff.
        """
        self._backends = tuple(backends)
        self._users = [backend.users for backend in backends if backend.users is not None]
        self._methods = dict(methods or {})
        self._backoff = backoff
        self._attempts: dict[tuple[str, str | None], set[asyncio.Task[Any]]] = {}
        self._hides_users = hides_users
        """Whether log lines have ``~`` instead of a user."""
        self._abandoned = 0
        """Checks whose client has left."""

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict if it is known immediately; otherwise None: await :meth:`check`."""
        backend = self._choose(credentials)
        verdict = backend.check_now(credentials)
        if verdict is None:
            return None
        self._settle(backend, credentials, verdict, worked=False)
        return verdict

    @property
    def user_count(self) -> int:
        """The number of users in the databases of the backends."""
        return sum(users.user_count for users in self._users)

    def rank(self, credentials: Credentials) -> LoginRank:
        """Return the order in which a login is verified, and admitted if very many wait."""
        if self._backoff is None:
            return LoginRank.NEW
        return self._backoff.rank(credentials.address, self._who(credentials))

    async def check(self, credentials: Credentials) -> Verdict:
        """Ask the responsible backend; end immediately if the user becomes slowed meanwhile.

        If the call is cancelled because the client has left, queued work is dropped. Once the work
        has begun, a wrong password still counts: otherwise a client that disconnects in time could
        guess, and cause work, without limit.
        """
        verdict = self.check_now(credentials)
        if verdict is not None:
            return verdict
        backend = self._choose(credentials)
        user = backend.user_of(credentials)
        if not await self._turn(backend.method, credentials.address, user):
            return LOCKED_OUT
        if self._backoff is not None:
            rank = functools.partial(self._backoff.rank, credentials.address, user)
            credentials = credentials._replace(rank=rank)
        attempt = asyncio.create_task(backend.check(credentials))
        key = (_where(credentials), self._who(credentials))
        self._attempts.setdefault(key, set()).add(attempt)
        try:
            await asyncio.wait((attempt,))
        except asyncio.CancelledError:
            self._abandon(backend, credentials, attempt)
            raise
        self._drop(key, attempt)
        if attempt.cancelled():
            self.counts[backend.method, "backoff"] += 1
            return LOCKED_OUT
        verdict = _result(attempt, _FAILED)
        self._settle(backend, credentials, verdict, worked=True)
        await self._answer_late(credentials, verdict)
        return verdict

    def begin_exchange(
        self, method: str, credentials: Credentials, *, reauthenticates: bool = False
    ) -> Exchange | None:
        """Return a new exchange by a method of enhanced authentication; None: unknown method."""
        if method not in self._methods:
            return None
        return Exchange(method, credentials, reauthenticates=reauthenticates)

    async def step(self, exchange: Exchange, data: bytes | None) -> Step:
        """Return the answer to a step of an exchange, and count its end.

        The backoff is checked before and after each step: simultaneous exchanges that end after the
        last permitted failure are refused, whatever their result.
        """
        method = self._methods.get(exchange.method)
        if method is None:
            return Outcome(_NO_METHOD)
        if not await self._let_in(method, exchange):
            return Outcome(LOCKED_OUT)
        attempt = asyncio.create_task(method.step(exchange, data))
        key = (_where(exchange.credentials), exchange.user)
        if not exchange.reauthenticates:
            self._attempts.setdefault(key, set()).add(attempt)
        try:
            await asyncio.wait((attempt,))
        except asyncio.CancelledError:
            attempt.cancel()
            raise
        finally:
            if not exchange.reauthenticates:
                self._drop(key, attempt)
        if attempt.cancelled():
            self.counts[method.label, "backoff"] += 1
            return Outcome(LOCKED_OUT)
        outcome = _result(attempt, Outcome(_FAILED))
        if not isinstance(outcome, Outcome):
            # The first step may have named the user.
            return outcome if await self._let_in(method, exchange) else Outcome(LOCKED_OUT)
        if self._refuses(method, exchange):
            return Outcome(LOCKED_OUT)
        self._record(
            method.label, exchange.credentials, exchange.user, outcome.verdict, worked=True
        )
        await self._answer_late(exchange.credentials, outcome.verdict)
        return outcome

    def holds(self, verdict: Verdict) -> bool:
        """Return whether a login by the password file is still valid; True for others."""
        return verdict.proof is None or any(users.holds(verdict) for users in self._users)

    def close(self) -> None:
        """Close the threads and connections of all backends once the running checks are done."""
        for backend in self._backends:
            if backend.source is not None:
                backend.source.close()

    def _choose(self, credentials: Credentials) -> Backend:
        """Return the one backend that handles a login."""
        for backend in self._backends:
            if backend.handles(credentials):
                return backend
        raise LookupError(credentials.username)  # the last one handles every login

    def _who(self, credentials: Credentials) -> str | None:
        """Return the user of a login, as the backoff counts it."""
        return self._choose(credentials).user_of(credentials)

    def _refuses(self, method: Method, exchange: Exchange) -> bool:
        """Return whether an exchange ends because of earlier failed logins, and count the refusal.

        Re-authentication as the same user is exempt: otherwise other clients at its address could
        cause its disconnection. A failure of the client itself disconnects it.
        """
        credentials = exchange.credentials
        if exchange.in_turn or (exchange.reauthenticates and exchange.user == credentials.username):
            return False
        return self._backs_off(method.label, credentials.address, exchange.user)

    def _backs_off(self, method: str, address: str, user: str | None) -> bool:
        """Return whether a login is refused without verification, and count the refusal."""
        if self._backoff is None or not self._backoff.holds(address, user):
            return False
        self._count_refused(method)
        return True

    def _count_refused(self, method: str) -> None:
        if self._backoff is not None:
            self._backoff.refused += 1
        self.counts[method, "backoff"] += 1

    async def _turn(self, method: str, address: str, user: str | None) -> bool:
        """Wait until a login of a slowed user may be verified; return False if too many wait."""
        backoff = self._backoff
        if backoff is None or not backoff.slows(address, user):
            return True
        wait = backoff.reserve(address, user)
        if wait is None:
            self._count_refused(method)
            return False
        try:
            await asyncio.sleep(wait)
        except asyncio.CancelledError:
            backoff.give_back(address, user)
            raise
        return True

    async def _let_in(self, method: Method, exchange: Exchange) -> bool:
        """Wait for the turn of an exchange, once; return False if too many wait."""
        credentials = exchange.credentials
        again = exchange.reauthenticates and exchange.user == credentials.username
        if exchange.in_turn or again or self._backoff is None:
            return True
        if not self._backoff.slows(credentials.address, exchange.user):
            return True
        exchange.in_turn = await self._turn(method.label, credentials.address, exchange.user)
        return exchange.in_turn

    async def _answer_late(self, credentials: Credentials, verdict: Verdict) -> None:
        """Wait before a wrong login is answered, if many failed at the address."""
        if verdict.accepted or self._backoff is None:
            return
        if self._backoff.answers_late(credentials.address):
            await asyncio.sleep(_LATE)

    def _settle(
        self, backend: Backend, credentials: Credentials, verdict: Verdict, *, worked: bool
    ) -> None:
        """Count a verdict, also for the backoff."""
        self._record(
            backend.method,
            credentials,
            backend.user_of(credentials),
            verdict,
            worked=worked,
            guessable=backend.guessable,
        )

    def _record(
        self,
        method: str,
        credentials: Credentials,
        user: str | None,
        verdict: Verdict,
        *,
        worked: bool,
        guessable: bool = True,
    ) -> None:
        """Count a verdict of a method; failures count for the backoff if it is ``guessable``."""
        if verdict.accepted:
            self.counts[method, "accepted"] += 1
            # A cached verdict is no evidence about the attempts before it.
            if self._backoff is not None and worked:
                self._backoff.succeeded(credentials.address, user)
            return
        if verdict.result is AuthResult.UNAVAILABLE:
            self.counts[method, "unavailable"] += 1
            return
        self.counts[method, "refused"] += 1
        if self._backoff is None or not guessable:
            return
        shown = "~" if self._hides_users else user
        for what in self._backoff.failed(credentials.address, user):
            log.warning(
                "logins slowed for a while after failed ones",
                address=credentials.address,
                user=shown if what == "user" else "(all)",
                seconds=self._backoff.options.duration,
            )
            if what == "user":
                self._give_up(credentials, user)

    def _give_up(self, credentials: Credentials, who: str | None) -> None:
        """End the pending checks of the user at the address."""
        for attempt in self._attempts.get((_where(credentials), who), ()):
            attempt.cancel()

    def _abandon(
        self, backend: Backend, credentials: Credentials, attempt: asyncio.Task[Verdict]
    ) -> None:
        """Cancel a check whose client has left, unless its work has begun and counts."""
        users = backend.users
        begun = attempt.done() or (users is not None and users.verifying(credentials))
        if not begun or self._abandoned >= _MAX_ABANDONED:
            attempt.cancel()
            self._drop((_where(credentials), self._who(credentials)), attempt)
            return
        self._abandoned += 1
        attempt.add_done_callback(functools.partial(self._abandoned_ended, backend, credentials))

    def _abandoned_ended(
        self, backend: Backend, credentials: Credentials, attempt: asyncio.Task[Verdict]
    ) -> None:
        self._abandoned -= 1
        self._drop((_where(credentials), self._who(credentials)), attempt)
        if attempt.cancelled():  # locked out meanwhile
            return
        verdict = _result(attempt, _FAILED)
        # A success admitted no client, and does not reset the failures.
        if not verdict.accepted and verdict.result is not AuthResult.UNAVAILABLE:
            self._settle(backend, credentials, verdict, worked=True)

    def _drop(self, key: tuple[str, str | None], attempt: asyncio.Task[Any]) -> None:
        attempts = self._attempts[key]
        attempts.discard(attempt)
        if not attempts:
            del self._attempts[key]


def _result(attempt: asyncio.Task[T], if_it_failed: T) -> T:
    """Return the result of a finished check."""
    try:
        return attempt.result()
    except Exception as error:  # noqa: BLE001 - a check that fails must not let anybody in
        log.error("login could not be checked", error=type(error).__name__)  # noqa: TRY400 -- could hold what the client sent
        return if_it_failed


def _where(credentials: Credentials) -> str:
    """Return the address of a login, as the backoff counts it."""
    return network(credentials.address) or credentials.address
