"""Who decides about a CONNECT: which source is asked, in which order, and who is not asked at all.

A client certificate goes before everything, where the listener takes users from certificates.
A password that looks like a token is for the token source, if there is one. A user whom the
password file has is the file's; all others are asked about outside, if that is set. Exactly one
source decides about a login: what one refuses no other accepts. A client that shows nothing comes
in where the listener is open to anonymous clients, and nowhere else.
"""

from __future__ import annotations

import asyncio
import functools
from collections import Counter
from typing import TYPE_CHECKING, Final, Protocol

import structlog

from actors.authn.credentials import AuthResult, Source, Verdict
from actors.authn.jwt_tokens import looks_like_token
from actors.authn.login_backoff import network

if TYPE_CHECKING:
    from actors.authn.credentials import Credentials
    from actors.authn.login_backoff import Jail

JAILED: Final = Verdict(AuthResult.BAD_CREDENTIALS, reason="jailed after failed logins")
"""The same answer as to a wrong password: who guesses is not told that a guess was right."""

_ANONYMOUS: Final = Verdict(AuthResult.ACCEPTED)
_UNASKED: Final = Verdict(AuthResult.ACCEPTED, claimed=True)
_NOT_ANONYMOUS: Final = Verdict(AuthResult.NOT_AUTHORISED, reason="no user name")
_NO_SOURCE: Final = Verdict(
    AuthResult.NOT_AUTHORISED, reason="no users are set, and the listener is not for anonymous ones"
)
_NO_TOKEN: Final = Verdict(AuthResult.BAD_CREDENTIALS, reason="the password is no token")
_FAILED: Final = Verdict(AuthResult.UNAVAILABLE, reason="the check failed")

_GUESSED: Final = frozenset({"token", "password", "callout"})
"""Methods by which somebody could guess."""
_MOST_ALONE: Final = 100
"""Checks that go on although their client has left. Few passwords are verified at once: where there
are more, they are for the same ones again and again."""

log = structlog.get_logger("foldmq")


class TokenSource(Source, Protocol):
    """A source that can tell for which user a token claims to be."""

    def claimed_user(self, token: bytes) -> str:
        """Return the user that a token names, without work and unverified; may be empty."""


class Users(Source, Protocol):
    """A source that can tell whether a user is its own, without work."""

    def knows(self, username: str) -> bool:
        """Tell whether this source decides about the user."""

    def holds(self, verdict: Verdict) -> bool:
        """Tell, without work, whether what a login was right by is there still."""

    def at_work(self, shown: Credentials) -> bool:
        """Tell whether the work on these credentials has begun, so that it will be done anyway."""


class Chain:
    """The authenticator of a broker: its sources, and the jail before them.

    ``claimed_names``: while there is no source that could look at a user name, anonymous clients
    are taken for whom they say they are; right only where nothing depends on it. ``ask_certified``:
    users from certificates are asked about outside as well, so that groups and permissions can
    come from there. ``counts`` is what :attr:`counts` goes on with after a reload.
    """

    def __init__(
        self,
        *,
        tokens: TokenSource | None = None,
        passwords: Users | None = None,
        callout: Source | None = None,
        jail: Jail | None = None,
        claimed_names: bool = False,
        ask_certified: bool = False,
        counts: Counter[tuple[str, str]] | None = None,
    ) -> None:
        self.counts: Counter[tuple[str, str]] = Counter() if counts is None else counts
        """How many logins had which end, by method and result.

        Methods: certificate, token, password, callout, anonymous, none. Results: accepted,
        refused, unavailable, jailed.
        """
        self.passwords = passwords
        self._tokens = tokens
        self._callout = callout
        self._jail = jail
        self._claimed_names = claimed_names
        self._ask_certified = ask_certified and callout is not None
        self._attempts: dict[tuple[str, str | None], set[asyncio.Task[Verdict]]] = {}
        self._alone = 0
        """Those of them whose client has left."""

    def check_now(self, shown: Credentials) -> Verdict | None:
        """Give the verdict if it is known without work; what is right passes the jail."""
        method, source = self._choose(shown)
        verdict = self._without_work(shown) if source is None else source.check_now(shown)
        if verdict is None and self._jail is not None:
            if not self._jail.holds(shown.address, self._who(shown)):
                return None
            self._jail.refused += 1
            self.counts[method, "jailed"] += 1
            return JAILED
        if verdict is not None:
            self._settle(method, shown, verdict, worked=False)
        return verdict

    def suspects(self, shown: Credentials) -> bool:
        """Return whether logins of this user or from this address failed lately."""
        return self._jail is not None and self._jail.suspects(shown.address, self._who(shown))

    async def check(self, shown: Credentials) -> Verdict:
        """Ask the source that decides; ends at once when the client is jailed meanwhile.

        Cancelled, as the client has left, it costs nothing if the work on its password has not
        begun. If it has, a wrong password counts all the same: else whoever hangs up in time could
        guess, and have the broker work, for ever.
        """
        verdict = self.check_now(shown)
        if verdict is not None:
            return verdict
        method, source = self._choose(shown)
        if source is None:
            return _FAILED
        if self._jail is not None:
            suspect = functools.partial(self._jail.suspects, shown.address, self._who(shown))
            shown = shown._replace(suspect=suspect)
        attempt = asyncio.create_task(source.check(shown))
        key = (_where(shown), self._who(shown))
        self._attempts.setdefault(key, set()).add(attempt)
        try:
            await asyncio.wait((attempt,))
        except asyncio.CancelledError:
            self._leave_alone(method, shown, attempt)
            raise
        self._drop(key, attempt)
        if attempt.cancelled():
            self.counts[method, "jailed"] += 1
            return JAILED
        verdict = self._result(attempt)
        self._settle(method, shown, verdict, worked=True)
        return verdict

    def holds(self, verdict: Verdict) -> bool:
        """Tell whether a login through the password file would be right now; True for others."""
        if verdict.proof is None:
            return True
        return self.passwords is not None and self.passwords.holds(verdict)

    def close(self) -> None:
        """Let the threads and connections of all sources end once what has begun is done."""
        for source in (self._tokens, self.passwords, self._callout):
            if source is not None:
                source.close()

    def _choose(self, shown: Credentials) -> tuple[str, Source | None]:
        """Give the method of a login, and the source that decides; None: no source is needed."""
        if shown.certificate_user is not None:
            return "certificate", self._callout if self._ask_certified else None
        if shown.username is None:
            return "anonymous", None
        if self._tokens is not None and looks_like_token(shown.password):
            return "token", self._tokens
        if self.passwords is not None and (
            self._callout is None or self.passwords.knows(shown.username)
        ):
            return "password", self.passwords
        if self._callout is not None:
            return "callout", self._callout
        return ("token" if self._tokens is not None else "none"), None

    def _who(self, shown: Credentials) -> str | None:
        """Return the user that a login is for, as the jail knows it.

        A token may come without a user name. Then it is the user that the token claims to be for,
        although nothing of it is verified yet: a bad token is held against that user alone, not
        against all who show tokens at that address.
        """
        if shown.certificate_user is not None:
            return shown.certificate_user
        if shown.username == "" and shown.password is not None and self._tokens is not None:
            return self._tokens.claimed_user(shown.password)
        return shown.username

    def _without_work(self, shown: Credentials) -> Verdict:
        if shown.certificate_user is not None:
            return Verdict(AuthResult.ACCEPTED, shown.certificate_user)
        if shown.username is None:
            if not shown.allow_anonymous:
                return _NOT_ANONYMOUS
            asked = any((self._tokens, self.passwords, self._callout))
            return _UNASKED if self._claimed_names and not asked else _ANONYMOUS
        if self._tokens is not None:
            return _NO_TOKEN
        if not shown.allow_anonymous:
            return _NO_SOURCE
        if not self._claimed_names:
            return _ANONYMOUS
        return Verdict(AuthResult.ACCEPTED, shown.username, claimed=True)

    def _settle(self, method: str, shown: Credentials, verdict: Verdict, *, worked: bool) -> None:
        """Count a verdict, for the jail as well."""
        if verdict.accepted:
            self.counts[method, "accepted"] += 1
            # What was only remembered says nothing about the attempts before it.
            if self._jail is not None and worked:
                self._jail.succeeded(shown.address, self._who(shown))
            return
        if verdict.result is AuthResult.UNAVAILABLE:
            self.counts[method, "unavailable"] += 1
            return
        self.counts[method, "refused"] += 1
        if self._jail is None or method not in _GUESSED:
            return
        for what in self._jail.failed(shown.address, self._who(shown)):
            log.warning(
                "jailed after failed logins",
                address=shown.address,
                user=self._who(shown) if what == "user" else "(all)",
                seconds=self._jail.options.duration,
            )
            self._give_up(shown, everybody=what == "address")

    def _give_up(self, shown: Credentials, *, everybody: bool) -> None:
        """End what the user, or everybody at the address, still waits for."""
        where, who = _where(shown), self._who(shown)
        for (address, user), attempts in self._attempts.items():
            if address == where and (everybody or user == who):
                for attempt in attempts:
                    attempt.cancel()

    def _leave_alone(self, method: str, shown: Credentials, attempt: asyncio.Task[Verdict]) -> None:
        """Give up a check that nobody waits for, unless its work has begun and is to count."""
        begun = attempt.done() or (
            method == "password" and self.passwords is not None and self.passwords.at_work(shown)
        )
        if not begun or self._alone >= _MOST_ALONE:
            attempt.cancel()
            self._drop((_where(shown), self._who(shown)), attempt)
            return
        self._alone += 1
        attempt.add_done_callback(functools.partial(self._ended_alone, method, shown))

    def _ended_alone(self, method: str, shown: Credentials, attempt: asyncio.Task[Verdict]) -> None:
        self._alone -= 1
        self._drop((_where(shown), self._who(shown)), attempt)
        if attempt.cancelled():  # jailed meanwhile
            return
        verdict = self._result(attempt)
        # One that was right let nobody in, and forgives nothing.
        if not verdict.accepted and verdict.result is not AuthResult.UNAVAILABLE:
            self._settle(method, shown, verdict, worked=True)

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


def _where(shown: Credentials) -> str:
    """Give the address of a login, as the jail knows it."""
    return network(shown.address) or shown.address
