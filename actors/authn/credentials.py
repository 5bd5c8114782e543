"""What a client shows when it connects, and what is decided about it."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable

    from actors.authz import Rule


class AuthResult(enum.IntEnum):
    """The outcome as the CONNACK return code that tells it (MQTT 3.1.1, table 3.1)."""

    ACCEPTED = 0x00
    UNAVAILABLE = 0x03
    BAD_CREDENTIALS = 0x04
    NOT_AUTHORISED = 0x05


class Credentials(NamedTuple):
    """What a client shows with its CONNECT, and where it comes from."""

    username: str | None
    password: bytes | None
    client_id: str = ""
    address: str = ""
    """Host that it connects from, without the port; a name for Unix sockets."""
    listener: str = ""
    """Name of the listener that it came to."""
    allow_anonymous: bool = False
    """The listener lets in clients that show neither a user name nor a certificate."""
    certificate_user: str | None = None
    """User that the client certificate stands for, where the listener takes it from there."""
    suspect: Callable[[], bool] | None = None
    """Says whether logins of this user, or from this address, failed lately: work on them comes
    after that on others."""


class Verdict(NamedTuple):
    """What is decided about a CONNECT."""

    result: AuthResult
    user: str | None = None
    """Who it is, from now on and in all events; None: nobody, an anonymous client."""
    groups: tuple[str, ...] = ()
    """Groups that whoever vouches for the user puts it into; the permission file may add some."""
    rules: tuple[Rule, ...] | None = None
    """Permissions that came with the verdict, instead of those in the file; None: those."""
    expires_ms: int = 0
    """When the connection ends, Unix time in milliseconds; 0: it need not."""
    claimed: bool = False
    """Nothing was looked at: the user is what the client says, and gives it no rights."""
    reason: str = ""
    """Why not, for the log: a few words without anything that the client sent."""
    proof: int | None = None
    """Stands for the hash in the password file that it was let in by; None: by something else."""

    @property
    def accepted(self) -> bool:
        """True if the client may connect."""
        return self.result is AuthResult.ACCEPTED


class Source(Protocol):
    """Decides who a client is and whether it may connect."""

    def check_now(self, credentials: Credentials) -> Verdict | None:
        """Give the verdict if it is known without work, else None: ``check`` must be awaited."""

    async def check(self, credentials: Credentials) -> Verdict:
        """Give the verdict; may take a while, during which the event loop is free. Never raises."""

    def close(self) -> None:
        """Let threads and connections end once the checks that have begun are done."""


class Authenticator(Source, Protocol):
    """What a broker asks; counts what is decided."""

    @property
    def counts(self) -> Counter[tuple[str, str]]:
        """How many logins had which end, by method and result."""

    def holds(self, verdict: Verdict) -> bool:
        """Tell, without work, whether what let a client in once is there still.

        True for whatever has no ``proof``.
        """


def suspects(authenticator: object, credentials: Credentials) -> bool:
    """Return whether an authenticator has seen logins like this one fail lately.

    False for those that remember nothing of that kind.
    """
    ask = getattr(authenticator, "suspects", None)
    return ask is not None and bool(ask(credentials))
