"""Connection quotas: the number of connections and the rate of new ones.

Connections are counted per listener, per address and per user. Refused connections do not count. An
empty address (a Unix socket) and a missing user are not limited.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from actors.limits.address_networks import network_of
from actors.limits.limit_options import NO_QUOTA, Quota
from actors.limits.token_bucket import Buckets


class KeyedQuota:
    """The connections of all parties of one kind, each with the same quota.

    ``kind`` is the prefix of the reasons for a refusal: "address_connections", "address_rate".
    """

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

    @property
    def connections(self) -> int:
        """The number of connections of all parties."""
        return self._count.total()

    def sweep(self, now: float) -> None:
        """Remove expired entries; to be called once a second."""
        if self._rates is not None:
            self._rates.forget_full(now)


class ConnectionQuotas:
    """Connection quotas of the listeners of a node; ``listeners`` holds a quota for each by name.

    What a connection counts for is known step by step: its listener, its address, its user. Each
    step is one call of :meth:`enter`; one call of :meth:`leave` ends all of them.
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

    def refusal(
        self, now: float, listener: str | None = None, address: str = "", user: str | None = None
    ) -> str | None:
        """Return why a connection may not be opened now, or None; it is not counted."""
        for quota, party in self._parties(listener, address, user):
            reason = quota.refusal(party, now)
            if reason is not None:
                return reason
        return None

    def enter(
        self, now: float, listener: str | None = None, address: str = "", user: str | None = None
    ) -> str | None:
        """Count a connection; return why it is refused, and then not counted, or None."""
        reason = self.refusal(now, listener, address, user)
        if reason is None:
            for quota, party in self._parties(listener, address, user):
                quota.enter(party, now)
        return reason

    def leave(self, listener: str, address: str, user: str | None) -> None:
        """Stop counting a connection, for all that it was counted for."""
        for quota, party in self._parties(listener, address, user):
            quota.leave(party)

    def _parties(
        self, listener: str | None, address: str, user: str | None
    ) -> Iterator[tuple[KeyedQuota, str]]:
        if listener is not None:
            yield self._listener(listener), listener
        network = network_of(address)
        if network:
            yield self._addresses, network
        if user is not None:
            yield self._users, user

    def at_listener(self, name: str) -> int:
        """Return how many connections a listener has."""
        return self._listener(name).connections

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
