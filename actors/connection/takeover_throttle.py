"""Two clients that fight over a client identifier, told from one whose network flaps.

A connection with an identifier that is connected ends the connection before it [MQTT-3.1.4-2]. Of
two clients with one identifier that reconnect at once neither gets anything done, and each takeover
is events on disk. So they are slowed down, and a client that reconnects by itself is not: decision
0041.
"""

from __future__ import annotations

from typing import NamedTuple

from actors.limits import network_of

_IN_A_ROW = 12.0
"""Takeovers of one identifier that may be one client's own, though they come faster than one in
``takeover_delay``."""
_HOSTS = 8
"""Addresses of an identifier that are remembered for having been thrown out."""


class PreviousConnection(NamedTuple):
    """The connection that has the identifier."""

    host: str
    silence: float
    """Seconds since something was read behind its CONNECT; infinite if nothing was."""


class TakeoverThrottle:
    """Decides which connections wait; times are monotonic, in seconds.

    ``most`` identifiers are remembered.
    """

    __slots__ = ("_known", "_most")

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._known: dict[str, _Identifier] = {}
        """Those first that were not taken over for longest."""

    def __len__(self) -> int:
        """Return of how many identifiers something is known."""
        return len(self._known)

    def must_wait(
        self, name: str, host: str, old: PreviousConnection, now: float, takeover_delay: float
    ) -> bool:
        """Count a takeover of ``name`` by a client at ``host``; return whether it is to wait.

        An address that comes from elsewhere is let in. One that comes back within twice
        ``takeover_delay`` after another one threw it out has to wait, when the connection of that
        one is in use. Whatever else may be one client's own doing is let in so many times.
        """
        if not takeover_delay:
            return False
        known = self._known.pop(name, None) or _Identifier(now)
        self._known[name] = known
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        mine, other = network_of(host), network_of(old.host)
        since = known.thrown_out.pop(mine, None)
        if mine != other:
            known.throw_out(other, now)
        back = since is not None and now - since < 2 * takeover_delay
        if mine != other and not back:
            return False
        fight = mine != other and old.silence < takeover_delay
        return known.takes(now, takeover_delay, fight=fight)


class _Identifier:
    """What is known of one identifier."""

    __slots__ = ("_left", "_since", "thrown_out")

    def __init__(self, now: float) -> None:
        self._left = _IN_A_ROW
        self._since = now
        self.thrown_out: dict[str, float] = {}
        """When addresses lost their connection to another one."""

    def throw_out(self, host: str, now: float) -> None:
        self.thrown_out.pop(host, None)
        self.thrown_out[host] = now
        if len(self.thrown_out) > _HOSTS:
            del self.thrown_out[next(iter(self.thrown_out))]

    def takes(self, now: float, takeover_delay: float, *, fight: bool) -> bool:
        """Count a takeover, of which ``takeover_delay`` allows one; return whether it waits."""
        left = min(_IN_A_ROW, self._left + (now - self._since) / takeover_delay)
        self._left = -1.0 if fight else max(-1.0, left - 1)
        self._since = now
        return self._left < 0
