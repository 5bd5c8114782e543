"""An authenticator that admits everybody."""

from collections import Counter

from actors.access.credentials import AuthResult, Credentials, Verdict


class Anonymous:
    """Everybody may connect; a user name and password are accepted unseen."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def check_now(self, shown: Credentials) -> Verdict | None:
        """Accept."""
        return Verdict(AuthResult.ACCEPTED, shown.username, claimed=True)

    async def check(self, shown: Credentials) -> Verdict:
        """Accept."""
        return Verdict(AuthResult.ACCEPTED, shown.username, claimed=True)

    def begin_exchange(self, *_: object, **__: object) -> None:
        """Know no method of enhanced authentication."""

    def holds(self, verdict: Verdict) -> bool:
        """Say yes."""
        return True

    def close(self) -> None:
        """Do nothing: there are no threads."""
