"""Connection quotas: the number of connections and the rate of new ones.

Connections are counted per listener, per address and per user. Refused connections do not count. An
empty address (a Unix socket) and a missing user are not limited.
"""

from collections import Counter
from collections.abc import Mapping

from actors.limits.address_networks import network_of
from actors.limits.limit_options import NO_QUOTA, Quota
from actors.limits.token_bucket import Buckets


class KeyedQuota:
    """The connections of all parties of one kind, each with the same quota.

    ``kind`` is the prefix of the reasons for a refusal: "address_connections", "address_rate".
    """

    __slots__ = ("_burst", "_count", "_kind", "_quota", "_rates")

    def __init__(self, kind: str, quota: Quota, burst: float) -> None:
        self._kind = kind
        self._quota = quota
        self._burst = burst
        self._count: Counter[str] = Counter()
        self._rates = _rates(quota, burst)

    def change(self, quota: Quota, burst: float) -> None:
        """Apply another quota; existing connections stay, and changed rates restart."""
        if (quota.connection_rate, burst) != (self._quota.connection_rate, self._burst):
            self._rates = _rates(quota, burst)
        self._quota = quota
        self._burst = burst

    def refusal(self, party: str, now: float) -> str | None:
        """Return why a party may not open a connection now, or None."""
        most = self._quota.connections
        if most and self._count[party] >= most:
            return f"{self._kind}_connections"
        if self._rates is not None and not self._rates.allows(party, now):
            return f"{self._kind}_rate"
        return None

    def enter(self, party: str, now: float) -> None:
        """Count a new connection."""
        self._count[party] += 1
        if self._rates is not None:
            self._rates.take(party, 1, now)

    def leave(self, party: str) -> None:
        """Stop counting a connection."""
        if self._count[party] > 1:
            self._count[party] -= 1
        else:
            del self._count[party]

    def count(self, party: str) -> int:
        """Return how many connections a party has."""
        return self._count[party]

    def __len__(self) -> int:
        """Return the number of parties with a connection."""
        return len(self._count)

    def sweep(self, now: float) -> None:
        """Remove expired entries; to be called once a second."""
        if self._rates is not None:
            self._rates.forget_full(now)


class ConnectionQuotas:
    """Connection quotas of the listeners of a node; ``listeners`` holds a quota for each by name.

    A connection passes :meth:`arrive` when it is accepted, :meth:`locate` once a PROXY header has
    given its address, :meth:`identify` when its user is known, and :meth:`leave` with the same
    arguments when it ends.
    """

    def __init__(
        self, listeners: Mapping[str, Quota], address: Quota, user: Quota, burst: float
    ) -> None:
        self._listeners: dict[str, KeyedQuota] = {}
        self._addresses = KeyedQuota("address", address, burst)
        self._users = KeyedQuota("user", user, burst)
        self.change(listeners, address, user, burst)

    def change(
        self, listeners: Mapping[str, Quota], address: Quota, user: Quota, burst: float
    ) -> None:
        """Apply other quotas; existing connections stay."""
        for name, quota in listeners.items():
            self._listener(name).change(quota, burst)
        self._addresses.change(address, burst)
        self._users.change(user, burst)

    def refusal(self, listener: str, address: str, now: float) -> str | None:
        """Return why a connection may not be opened now, or None; it is not counted."""
        reason = self._listener(listener).refusal(listener, now)
        network = network_of(address)
        if reason is None and network:
            reason = self._addresses.refusal(network, now)
        return reason

    def arrive(self, listener: str, address: str, now: float) -> str | None:
        """Count a new connection; return why it is refused, or None."""
        reason = self.refusal(listener, address, now)
        if reason is None:
            self._listener(listener).enter(listener, now)
            network = network_of(address)
            if network:
                self._addresses.enter(network, now)
        return reason

    def locate(self, address: str, now: float) -> str | None:
        """Count a connection for an address known later; return why it is refused, or None.

        If it is refused, :meth:`leave` must get no address.
        """
        network = network_of(address)
        if not network:
            return None
        reason = self._addresses.refusal(network, now)
        if reason is None:
            self._addresses.enter(network, now)
        return reason

    def identify(self, user: str | None, now: float) -> str | None:
        """Count a connection for its user; return why it is refused, or None.

        If it is refused, :meth:`leave` must get no user.
        """
        if user is None:
            return None
        reason = self._users.refusal(user, now)
        if reason is None:
            self._users.enter(user, now)
        return reason

    def leave(self, listener: str, address: str, user: str | None = None) -> None:
        """Stop counting a connection, with the arguments that it was counted for."""
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
        """Remove expired entries; to be called once a second."""
        for parties in (self._addresses, self._users, *self._listeners.values()):
            parties.sweep(now)

    def _listener(self, name: str) -> KeyedQuota:
        quota_of_listener = self._listeners.get(name)
        if quota_of_listener is None:
            quota_of_listener = self._listeners[name] = KeyedQuota("listener", NO_QUOTA, 1.0)
        return quota_of_listener


def _rates(quota: Quota, burst: float) -> Buckets | None:
    rate = quota.connection_rate
    # A burst below one would reject every connection.
    return Buckets(rate, max(1.0, rate * burst)) if rate else None
