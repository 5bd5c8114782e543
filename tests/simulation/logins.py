"""Sources of users that answer with a delay."""

import asyncio
from collections import Counter

from actors.access.credentials import AuthResult, Credentials, Verdict
from actors.transports.handshakes import Handshakes, take_step


class AcceptingAuthenticator:
    """Accepts every user name, as if a password had been verified."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def check_now(self, shown: Credentials) -> Verdict | None:
        return Verdict(AuthResult.ACCEPTED, shown.username)

    async def check(self, shown: Credentials) -> Verdict:
        raise AssertionError(shown)

    def begin_exchange(self, *_: object, **__: object) -> None:
        """There is no method of enhanced authentication."""

    def close(self) -> None:
        """Nothing to do."""


class Slow(AcceptingAuthenticator):
    """Needs a while."""

    seconds = 1.0

    def check_now(self, _shown: Credentials) -> Verdict | None:
        return None

    async def check(self, shown: Credentials) -> Verdict:
        await asyncio.sleep(self.seconds)
        return Verdict(AuthResult.ACCEPTED, shown.username)


class Threads(Handshakes):
    """Takes the steps of handshakes itself, unless it is stuck."""

    stuck = False

    def _start(self) -> None:
        while not self.stuck and (self._begun or self._new):
            job = (self._begun or self._new).popleft()
            if job.wanted():
                asyncio.get_running_loop().call_soon(lambda job=job: job.done(take_step(job.tls)))

    def start_from(self) -> None:
        self.stuck = False
        self._start()
