"""Slows down clients that keep taking over one client identifier, but not one whose network flaps.

A CONNECT with the client identifier of a connected client ends the earlier connection
[MQTT-3.1.4-2]. If two clients share an identifier and reconnect immediately, neither can work, and
each takeover writes events to disk. So they are slowed down; a single client that reconnects is
not. An address that comes back within two delays after another one threw it out waits, if the
connection that it would end is in use. One from elsewhere, or one that comes back to a silent
connection, is let in at once, up to twelve times in a row.
"""

from __future__ import annotations

from typing import NamedTuple

from actors.limits.address_networks import network_of

_IN_A_ROW = 12.0
"""Number of takeovers of one identifier that are attributed to a single client although they are
faster than one per ``takeover_delay``."""
_HOSTS = 8
"""Number of addresses remembered per identifier whose connection was taken over."""


class PreviousConnection(NamedTuple):
    """The current connection of the identifier."""

    host: str
    silence: float
    """Seconds since the last read after its CONNECT; infinite if there was none."""


class TakeoverThrottle:
    """Decides which connections wait; times are monotonic, in seconds.

    At most ``most`` identifiers are remembered.
    """

    __slots__ = ("_known", "_most")

    def __init__(self, most: int = 10_000) -> None:
        self._most = most
        self._known: dict[str, _Identifier] = {}
        """Identifiers, those with the oldest takeover first."""

    def __len__(self) -> int:
        """Return the number of remembered identifiers."""
        return len(self._known)

    def must_wait(
        self, name: str, host: str, old: PreviousConnection, now: float, takeover_delay: float
    ) -> bool:
        """Count a takeover of ``name`` by a client at ``host``; return whether it must wait.

        A new address is admitted. If the connection of an address was taken over from another one,
        and the address returns within twice ``takeover_delay``, it waits if the other connection is
        in use. Takeovers that may come from a single client are admitted up to a limit.
        """
        if not takeover_delay:
            return False
        known = self._known.pop(name, None) or _Identifier(now)
        self._known[name] = known
        if len(self._known) > self._most:
            del self._known[next(iter(self._known))]
        mine, other = network_of(host), network_of(old.host)
        since = known.disconnected.pop(mine, None)
        if mine != other:
            known.add_disconnected(other, now)
        back = since is not None and now - since < 2 * takeover_delay
        if mine != other and not back:
            return False
        fight = mine != other and old.silence < takeover_delay
        return known.takes(now, takeover_delay, fight=fight)


class _Identifier:
    """The recent takeovers of one identifier."""

    __slots__ = ("_left", "_since", "disconnected")

    def __init__(self, now: float) -> None:
        self._left = _IN_A_ROW
        self._since = now
        self.disconnected: dict[str, float] = {}
        """Addresses that lost their connection to another one, and when."""

    def add_disconnected(self, host: str, now: float) -> None:
        self.disconnected.pop(host, None)
        self.disconnected[host] = now
        if len(self.disconnected) > _HOSTS:
            del self.disconnected[next(iter(self.disconnected))]

    def takes(self, now: float, takeover_delay: float, *, fight: bool) -> bool:
        """Count a takeover; one is permitted per ``takeover_delay``.

        Returns whether it must wait.
        """
        left = min(_IN_A_ROW, self._left + (now - self._since) / takeover_delay)
        self._left = -1.0 if fight else max(-1.0, left - 1)
        self._since = now
        return self._left < 0
