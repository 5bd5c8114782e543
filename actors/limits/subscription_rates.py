"""How fast a session may change its subscriptions."""

from __future__ import annotations


class SubscriptionRate:
    """The subscriptions that a session began and ended lately; times are monotonic seconds."""

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._at = 0.0
        self._level = 0.0
        """How many of them are not made up for by time."""

    def add(self, count: int, now: float, rate: float, burst: int) -> float:
        """Count changes; return for how many seconds the session has to wait, mostly 0.

        ``rate`` are those that it may make in a second in the mean (0: no bound), ``burst`` those
        that may come at once.
        """
        if not rate:
            return 0.0
        self._level = max(0.0, self._level - (now - self._at) * rate) + count
        self._at = now
        return max(0.0, self._level - burst) / rate
