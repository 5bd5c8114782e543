"""Authentication chain: picks the one backend that authenticates a CONNECT.

The order of the backends and what each claims is in :mod:`actors.authn.backends`: a client
certificate goes before everything, where the listener takes users from certificates; a password
that looks like a token is for the token backend, if there is one; users of the password file are
the file's, all others are asked about outside, if that is set. A client that shows nothing is
accepted where the listener is open to anonymous clients, and nowhere else.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from typing import TYPE_CHECKING, Final

import structlog

from actors.authn.credentials import AuthResult, Verdict
from actors.authn.login_backoff import network

if TYPE_CHECKING:
    from collections.abc import Sequence

    from actors.authn.backends import Backend
    from actors.authn.credentials import Credentials
    from actors.authn.login_backoff import LoginBackoff

LOCKED_OUT: Final = Verdict(AuthResult.BAD_CREDENTIALS, reason="jailed after failed logins")
"""The same answer as to a wrong password: who guesses is not told that a guess was right."""

_FAILED: Final = Verdict(AuthResult.UNAVAILABLE, reason="the check failed")

_MOST_ALONE: Final = 100
"""Checks that go on although their client has left. Few passwords are verified at once: where there
are more, they are for the same ones again and again."""

log = structlog.get_logger("foldmq")


class AuthenticatorChain:
    """The authenticator of a broker: its backends, and the login backoff before them.

    ``counts`` is what :attr:`counts` goes on with after a reload.
    """

    def __init__(
        self,
        backends: Sequence[Backend],
        *,
        backoff: LoginBackoff | None = None,
        counts: Counter[tuple[str, str]] | None = None,
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter() if counts is None else counts
        """How many logins had which end, by method and result.

        Methods: certificate, token, password, callout, anonymous, none. Results: accepted,
        refused, unavailable, jailed.
        """
        self._backends = tuple(backends)
        self._backoff = backoff
        self._attempts: dict[tuple[str, str | None], set[asyncio.Task[Verdict]]] = {}
        self._alone = 0
        """Those of them whose client has left."""

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Return the verdict if it is known without work; what is right passes the backoff."""
        backend = self._choose(credentials)
        verdict = backend.check_now(credentials)
        if verdict is None and self._backoff is not None:
            if not self._backoff.holds(credentials.address, backend.user_of(credentials)):
                return None
            self._backoff.refused += 1
            self.counts[backend.method, "jailed"] += 1
            return LOCKED_OUT
        if verdict is not None:
            self._settle(backend, credentials, verdict, worked=False)
        return verdict

    @property
    def user_count(self) -> int:
        """The number of users that the backends know by themselves."""
        return sum(backend.user_count for backend in self._backends)

    def suspects(self, credentials: Credentials) -> bool:
        """Return whether logins of this user or from this address failed lately."""
        return self._backoff is not None and self._backoff.suspects(
            credentials.address, self._who(credentials)
        )

    async def check(self, credentials: Credentials) -> Verdict:
        """Ask the source that decides; ends at once when the client is jailed meanwhile.

        Cancelled, as the client has left, it costs nothing if the work on its password has not
        begun. If it has, a wrong password counts all the same: else whoever hangs up in time could
        guess, and have the broker work, for ever.
        """
        verdict = self.check_now(credentials)
        if verdict is not None:
            return verdict
        backend = self._choose(credentials)
        if self._backoff is not None:
            suspect = functools.partial(
                self._backoff.suspects, credentials.address, self._who(credentials)
            )
            credentials = credentials._replace(suspect=suspect)
        attempt = asyncio.create_task(backend.check(credentials))
        key = (_where(credentials), self._who(credentials))
        self._attempts.setdefault(key, set()).add(attempt)
        try:
            await asyncio.wait((attempt,))
        except asyncio.CancelledError:
            self._leave_alone(backend, credentials, attempt)
            raise
        self._drop(key, attempt)
        if attempt.cancelled():
            self.counts[backend.method, "jailed"] += 1
            return LOCKED_OUT
        verdict = self._result(attempt)
        self._settle(backend, credentials, verdict, worked=True)
        return verdict

    def holds(self, verdict: Verdict) -> bool:
        """Tell whether a login through the password file would be right now; True for others."""
        return verdict.proof is None or any(one.holds(verdict) for one in self._backends)

    def close(self) -> None:
        """Let the threads and connections of all backends end once what has begun is done."""
        for backend in self._backends:
            backend.close()

    def _choose(self, credentials: Credentials) -> Backend:
        """Return the one backend that decides about a login."""
        return next(one for one in self._backends if one.claims(credentials))

    def _who(self, credentials: Credentials) -> str | None:
        """Return the user that a login is for, as the backoff knows it."""
        return self._choose(credentials).user_of(credentials)

    def _settle(
        self, backend: Backend, credentials: Credentials, verdict: Verdict, *, worked: bool
    ) -> None:
        """Count a verdict, for the jail as well."""
        if verdict.accepted:
            self.counts[backend.method, "accepted"] += 1
            # What was only remembered says nothing about the attempts before it.
            if self._backoff is not None and worked:
                self._backoff.succeeded(credentials.address, self._who(credentials))
            return
        if verdict.result is AuthResult.UNAVAILABLE:
            self.counts[backend.method, "unavailable"] += 1
            return
        self.counts[backend.method, "refused"] += 1
        if self._backoff is None or not backend.guessable:
            return
        for what in self._backoff.failed(credentials.address, self._who(credentials)):
            log.warning(
                "jailed after failed logins",
                address=credentials.address,
                user=self._who(credentials) if what == "user" else "(all)",
                seconds=self._backoff.options.duration,
            )
            self._give_up(credentials, everybody=what == "address")

    def _give_up(self, credentials: Credentials, *, everybody: bool) -> None:
        """End what the user, or everybody at the address, still waits for."""
        where, who = _where(credentials), self._who(credentials)
        for (address, user), attempts in self._attempts.items():
            if address == where and (everybody or user == who):
                for attempt in attempts:
                    attempt.cancel()

    def _leave_alone(
        self, backend: Backend, credentials: Credentials, attempt: asyncio.Task[Verdict]
    ) -> None:
        """Give up a check that nobody waits for, unless its work has begun and is to count."""
        begun = attempt.done() or backend.verifying(credentials)
        if not begun or self._alone >= _MOST_ALONE:
            attempt.cancel()
            self._drop((_where(credentials), self._who(credentials)), attempt)
            return
        self._alone += 1
        attempt.add_done_callback(functools.partial(self._ended_alone, backend, credentials))

    def _ended_alone(
        self, backend: Backend, credentials: Credentials, attempt: asyncio.Task[Verdict]
    ) -> None:
        self._alone -= 1
        self._drop((_where(credentials), self._who(credentials)), attempt)
        if attempt.cancelled():  # jailed meanwhile
            return
        verdict = self._result(attempt)
        # One that was right let nobody in, and forgives nothing.
        if not verdict.accepted and verdict.result is not AuthResult.UNAVAILABLE:
            self._settle(backend, credentials, verdict, worked=True)

    def _drop(self, key: tuple[str, str | None], attempt: asyncio.Task[Verdict]) -> None:
        attempts = self._attempts[key]
        attempts.discard(attempt)
        if not attempts:
            del self._attempts[key]

    def _result(self, attempt: asyncio.Task[Verdict]) -> Verdict:
        try:
            return attempt.result()
        except Exception as error:  # noqa: BLE001 - a check that fails must not let anybody in
            log.error("login could not be checked", error=type(error).__name__)  # noqa: TRY400 -- could hold what the client sent
            return _FAILED


def _where(credentials: Credentials) -> str:
    """Give the address of a login, as the jail knows it."""
    return network(credentials.address) or credentials.address
