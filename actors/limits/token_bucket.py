"""Token buckets: an average rate and a burst.

A bucket may be overdrawn, since input is counted after it was read: then it is in debt, and returns
how long to pause reading. Times are monotonic seconds, passed by the caller.
"""

import heapq
from collections.abc import Hashable

_AT_ONCE = 1000
"""Buckets checked at a time."""


class Bucket:
    """Credit that grows by ``rate`` per second, up to ``burst``; initially full."""

    __slots__ = ("_burst", "_credit", "_rate", "_since")

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate = rate
        self._burst = burst
        self._credit = burst
        self._since = now

    def take(self, amount: float, now: float) -> float:
        """Take credit, going into debt if necessary; return the seconds until it is paid."""
        credit = self._grown(now) - amount
        self._credit = credit
        self._since = now
        return 0.0 if credit >= 0 else -credit / self._rate

    def allows(self, now: float, amount: float = 1.0) -> bool:
        """Return whether the amount could be taken without debt."""
        return self._grown(now) >= amount

    def full_in(self, now: float) -> float:
        """Return in how many seconds it is full, if nothing is taken."""
        return (self._burst - self._grown(now)) / self._rate

    def _grown(self, now: float) -> float:
        return min(self._burst, self._credit + (now - self._since) * self._rate)


class Buckets:
    """A bucket for each key.

    Full buckets are dropped (:meth:`forget_full`). At most ``most`` are kept: beyond that, one that
    will soon be full is dropped.
    """

    __slots__ = ("_buckets", "_burst", "_due", "_most", "_rate", "_serial")

    def __init__(self, rate: float, burst: float, most: int = 100_000) -> None:
        self._rate = rate
        self._burst = burst
        self._most = most
        self._buckets: dict[Hashable, Bucket] = {}
        self._due: list[tuple[float, int, Hashable]] = []
        """Time at which to check whether a bucket is full, one entry for each: a heap."""
        self._serial = 0

    def __len__(self) -> int:
        """Return the number of buckets that are not known to be full."""
        return len(self._buckets)

    def take(self, key: Hashable, amount: float, now: float) -> float:
        """Take from the bucket of ``key``; return in how many seconds its debt is paid."""
        bucket = self._buckets.get(key)
        if bucket is None:
            bucket = self._make(key, now)
        return bucket.take(amount, now)

    def allows(self, key: Hashable, now: float) -> bool:
        """Return whether one could be taken without debt."""
        bucket = self._buckets.get(key)
        return bucket is None or bucket.allows(now)

    def forget_full(self, now: float) -> None:
        """Drop some of the buckets that are full again; to be called once a second."""
        due = self._due
        for _ in range(min(len(due), _AT_ONCE)):
            if due[0][0] > now:
                break
            _, _, key = heapq.heappop(due)
            wait = self._buckets[key].full_in(now)
            if wait <= 0:
                del self._buckets[key]
            else:
                self._look_again(key, now + wait)

    def _make(self, key: Hashable, now: float) -> Bucket:
        if len(self._buckets) >= self._most:
            _, _, first = heapq.heappop(self._due)
            del self._buckets[first]
        bucket = self._buckets[key] = Bucket(self._rate, self._burst, now)
        self._look_again(key, now + 1 / self._rate)
        return bucket

    def _look_again(self, key: Hashable, when: float) -> None:
        # The number breaks ties: keys of different types cannot be compared.
        self._serial += 1
        heapq.heappush(self._due, (when, self._serial, key))
