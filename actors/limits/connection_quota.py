"""Who may come in: how many connections there are and how fast new ones come.

Counted per listener, per address and per user. What is refused is not counted in, and costs no
credit for later. An empty address (a Unix socket) and a missing user have no bounds.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from actors.configuration import NO_QUOTA, Quota
from actors.limits.addresses import network_of
from actors.limits.token_bucket import Buckets

if TYPE_CHECKING:
    from collections.abc import Mapping


class PartyQuota:
    """The connections of everybody of one kind, each with the same quota.

    ``kind`` begins the reasons for which it refuses: "address_connections", "address_rate".
    """

    __slots__ = ("_burst", "_count", "_kind", "_quota", "_rates")

    def __init__(self, kind: str, quota: Quota, burst: float) -> None:
        self._kind = kind
        self._quota = quota
        self._burst = burst
        self._count: Counter[str] = Counter()
        self._rates = _rates(quota, burst)

    def change(self, quota: Quota, burst: float) -> None:
        """Take another quota; who is there stays, and rates begin anew if they changed."""
        if (quota.connection_rate, burst) != (self._quota.connection_rate, self._burst):
            self._rates = _rates(quota, burst)
        self._quota = quota
        self._burst = burst

    def refusal(self, who: str, now: float) -> str | None:
        """Return why ``who`` may have no further connection now, None if it may."""
        most = self._quota.connections
        if most and self._count[who] >= most:
            return f"{self._kind}_connections"
        if self._rates is not None and not self._rates.allows(who, now):
            return f"{self._kind}_rate"
        return None

    def enter(self, who: str, now: float) -> None:
        """Count a connection in."""
        self._count[who] += 1
        if self._rates is not None:
            self._rates.take(who, 1, now)

    def leave(self, who: str) -> None:
        """Count a connection out."""
        if self._count[who] > 1:
            self._count[who] -= 1
        else:
            del self._count[who]

    def count(self, who: str) -> int:
        """Return how many connections ``who`` has."""
        return self._count[who]

    def __len__(self) -> int:
        """Return how many have a connection."""
        return len(self._count)

    def sweep(self, now: float) -> None:
        """Forget what no longer matters; to be called once a second."""
        if self._rates is not None:
            self._rates.forget_full(now)


class ConnectionQuotas:
    """Who may come in at the listeners of a node; ``listeners`` has a quota for each by name.

    A connection goes through :meth:`arrive` when it is accepted, :meth:`locate` once a PROXY
    header has told where it really comes from, :meth:`identify` when it is known who it is, and
    :meth:`leave` with the same words once it is gone.
    """

    def __init__(
        self, listeners: Mapping[str, Quota], address: Quota, user: Quota, burst: float
    ) -> None:
        self._listeners: dict[str, PartyQuota] = {}
        self._addresses = PartyQuota("address", address, burst)
        self._users = PartyQuota("user", user, burst)
        self.change(listeners, address, user, burst)

    def change(
        self, listeners: Mapping[str, Quota], address: Quota, user: Quota, burst: float
    ) -> None:
        """Take other quotas; who is in stays in."""
        for name, quota in listeners.items():
            self._listener(name).change(quota, burst)
        self._addresses.change(address, burst)
        self._users.change(user, burst)

    def refusal(self, listener: str, address: str, now: float) -> str | None:
        """Return why a connection may not come in now, None if it may; it is not counted in."""
        reason = self._listener(listener).refusal(listener, now)
        network = network_of(address)
        if reason is None and network:
            reason = self._addresses.refusal(network, now)
        return reason

    def arrive(self, listener: str, address: str, now: float) -> str | None:
        """Count a new connection in; return why not, None if it may stay."""
        reason = self.refusal(listener, address, now)
        if reason is None:
            self._listener(listener).enter(listener, now)
            network = network_of(address)
            if network:
                self._addresses.enter(network, now)
        return reason

    def locate(self, address: str, now: float) -> str | None:
        """Count a connection that arrived without an address where it comes from, or say why not.

        If so it must leave without the address.
        """
        network = network_of(address)
        if not network:
            return None
        reason = self._addresses.refusal(network, now)
        if reason is None:
            self._addresses.enter(network, now)
        return reason

    def identify(self, user: str | None, now: float) -> str | None:
        """Count a connection that is in for a user; return why not, None if it may.

        If not it must leave without the user.
        """
        if user is None:
            return None
        reason = self._users.refusal(user, now)
        if reason is None:
            self._users.enter(user, now)
        return reason

    def leave(self, listener: str, address: str, user: str | None = None) -> None:
        """Count a connection out: what it was counted in for."""
        self._listener(listener).leave(listener)
        network = network_of(address)
        if network:
            self._addresses.leave(network)
        if user is not None:
            self._users.leave(user)

    def at_listener(self, name: str) -> int:
        """Return how many connections a listener has."""
        return self._listener(name).count(name)

    def connections(self, address: str) -> int:
        """Return how many connections there are from an address or its network."""
        return self._addresses.count(network_of(address))

    def sweep(self, now: float) -> None:
        """Forget what no longer matters; to be called once a second."""
        for parties in (self._addresses, self._users, *self._listeners.values()):
            parties.sweep(now)

    def _listener(self, name: str) -> PartyQuota:
        found = self._listeners.get(name)
        if found is None:
            found = self._listeners[name] = PartyQuota("listener", NO_QUOTA, 1.0)
        return found


def _rates(quota: Quota, burst: float) -> Buckets | None:
    rate = quota.connection_rate
    # Fewer than one at once would let nobody in, ever.
    return Buckets(rate, max(1.0, rate * burst)) if rate else None
