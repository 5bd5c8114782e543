"""Publish rates: input beyond a client's rate is read later.

Several rates may apply to one connection: its own, and those it shares with the connections of its
user, of its address and of its listener. The longest of the resulting pauses applies.

Only pauses for its own rate count towards the disconnection of a client: others may cause the debt
of a shared rate. A shared rate is divided among the connections that wait for it, and each waits
until its share has paid its own debt: a client that sends little is soon read again, however much
others send.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from weakref import WeakSet, WeakValueDictionary

from actors.limits.address_networks import network_of
from actors.limits.limit_options import Quota
from actors.limits.token_bucket import Bucket, Buckets

_SHORTEST = 0.05
"""Minimum seconds of a pause; otherwise each packet would be read separately."""
_BREAK = 1.0
"""Seconds without a pause after which the time for which a client was throttled is reset."""


class RateLimiter:
    """The rate limit of one connection: its own buckets, and those that it shares."""

    __slots__ = (
        "_due",
        "_held_since",
        "_max_wait",
        "_own_bytes",
        "_own_messages",
        "_shared_bytes",
        "_shared_messages",
    )  # fmt: skip

    def __init__(
        self,
        own: tuple[Bucket | None, Bucket | None],
        shared: tuple[tuple[RateShare, ...], tuple[RateShare, ...]],
        max_wait: float,
    ) -> None:
        """``own`` and ``shared`` hold buckets of messages and of bytes."""
        self._own_messages, self._own_bytes = own
        self._shared_messages, self._shared_bytes = shared
        self._max_wait = max_wait
        self._held_since: float | None = None
        self._due = 0.0

    def took(self, messages: int, size: int, now: float) -> float:
        """Count the input of one read; return for how many seconds to pause."""
        own = shared = 0.0
        if messages:
            if self._own_messages is not None:
                own = self._own_messages.take(messages, now)
            shared = _longest(self._shared_messages, messages, now)
        if self._own_bytes is not None:
            own = max(own, self._own_bytes.take(size, now))
        shared = max(shared, _longest(self._shared_bytes, size, now))
        if own <= 0:
            self._held_since = None
            if shared <= 0:
                return 0.0
        else:
            if self._held_since is None or now > self._due + _BREAK:
                self._held_since = now
            if self._max_wait:
                # Not longer than ``max_wait``: only reading detects that a client has left, and a
                # client that sends even more after the pause is disconnected.
                own = min(own, self._held_since + self._max_wait - now)
        wait = max(own, shared, _SHORTEST)
        self._due = now + wait
        return wait

    def debt(self, now: float) -> float:
        """Return the initial pause in seconds, caused by the debt of shared buckets."""
        shares = (*self._shared_messages, *self._shared_bytes)
        return max((share.debt(now) for share in shares), default=0.0)

    def is_throttled_too_long(self, now: float) -> bool:
        """Return whether the client was throttled by its own rate for too long."""
        since = self._held_since
        return bool(self._max_wait) and since is not None and now - since >= self._max_wait


class RateShare:
    """The share of one connection in a bucket that it shares with others."""

    __slots__ = ("__weakref__", "_paid_at", "_party", "_pool", "_waiting")

    def __init__(self, pool: RatePool, party: str, waiting: WeakSet[RateShare]) -> None:
        self._pool = pool
        self._party = party
        self._waiting = waiting
        self._paid_at = 0.0
        """When its share of the rate has paid its own debt."""

    def take(self, amount: float, now: float) -> float:
        """Take credit; return for how many seconds this connection must wait."""
        debt = self._pool.buckets.take(self._party, amount, now)
        if debt <= 0:
            self._waiting.discard(self)
            return 0.0
        self._waiting.add(self)
        part = self._pool.rate / len(self._waiting)
        self._paid_at = max(self._paid_at, now) + amount / part
        return min(debt, self._paid_at - now)

    def debt(self, now: float) -> float:
        """Return in how many seconds the whole debt is paid."""
        return self._pool.buckets.take(self._party, 0.0, now)


class RatePool:
    """The buckets of all parties of a kind; the connections of a party share a bucket."""

    __slots__ = ("_waiting", "buckets", "rate")

    def __init__(self, rate: float, burst: float) -> None:
        self.rate = rate
        self.buckets = Buckets(rate, _burst_of(rate, burst))
        self._waiting: WeakValueDictionary[str, WeakSet[RateShare]] = WeakValueDictionary()
        """Shares by party that were in debt when they were last used."""

    def share(self, party: str) -> RateShare:
        """Return the share of a new connection of a party."""
        waiting = self._waiting.get(party)
        if waiting is None:
            waiting = self._waiting[party] = WeakSet()
        return RateShare(self, party, waiting)


def _longest(shares: Iterable[RateShare], amount: float, now: float) -> float:
    wait = 0.0
    for share in shares:
        wait = max(wait, share.take(amount, now))
    return wait


class PublishRates:
    """The shared publish rates; creates the rate limiter of each connection."""

    def __init__(
        self,
        listeners: Mapping[str, Quota],
        address: Quota,
        user: Quota,
        client: Quota,
        burst: float,
        max_wait: float,
    ) -> None:
        self._client = client
        self._burst = burst
        self._max_wait = max_wait
        quotas = {"address": address, "user": user}
        quotas |= {f"listener {name}": quota for name, quota in listeners.items()}
        self._shared = {kind: _pools(quota, burst) for kind, quota in quotas.items()}
        self._is_limited = any(
            quota.publish_rate or quota.publish_bytes for quota in (client, *quotas.values())
        )

    def rate_limiter(
        self, listener: str, address: str, user: str | None, now: float
    ) -> RateLimiter | None:
        """Return the rate limiter of a connection; None if its rate is not limited."""
        if not self._is_limited:
            return None
        own_messages, own_bytes = (
            Bucket(rate, _burst_of(rate, self._burst), now) if rate else None
            for rate in (self._client.publish_rate, self._client.publish_bytes)
        )
        messages: list[RateShare] = []
        sizes: list[RateShare] = []
        place = f"listener {listener}"
        for kind, party in (("address", network_of(address)), ("user", user), (place, listener)):
            for shares, pool in zip((messages, sizes), self._shared.get(kind, ()), strict=False):
                if pool is not None and party:
                    shares.append(pool.share(party))
        if own_messages is None and own_bytes is None and not messages and not sizes:
            return None
        shared = tuple(messages), tuple(sizes)
        return RateLimiter((own_messages, own_bytes), shared, self._max_wait)

    def debt(self, address: str, user: str | None, now: float) -> float:
        """Return the debt of an address and a user in seconds."""
        longest = 0.0
        if not self._is_limited:
            return longest
        for kind, party in (("address", network_of(address)), ("user", user)):
            for pool in self._shared[kind]:
                if pool is not None and party:
                    longest = max(longest, pool.buckets.take(party, 0.0, now))
        return longest

    def sweep(self, now: float) -> None:
        """Remove expired entries; to be called once a second."""
        for pools in self._shared.values():
            for pool in pools:
                if pool is not None:
                    pool.buckets.forget_full(now)


def _pools(quota: Quota, burst: float) -> tuple[RatePool | None, RatePool | None]:
    """Return the rates of messages and of bytes that the connections of a party share."""
    messages, sizes = quota.publish_rate, quota.publish_bytes
    return (
        RatePool(messages, burst) if messages else None,
        RatePool(sizes, burst) if sizes else None,
    )


def _burst_of(rate: float, seconds: float) -> float:
    return max(1.0, rate * seconds)
