"""The rate at which a session may change its subscriptions."""

from __future__ import annotations


class SubscriptionRate:
    """Counts recent changes of a session's subscriptions; times are monotonic seconds."""

    __slots__ = ("_at", "_level")

    def __init__(self) -> None:
        self._at = 0.0
        self._level = 0.0
        """Changes beyond the rate."""

    def add(self, count: int, now: float, rate: float, burst: int) -> float:
        """Count changes; return for how many seconds the session must wait, usually 0.

        ``rate`` is the average number per second (0: unlimited), ``burst`` the number allowed
        without a pause.
        """
        if not rate:
            return 0.0
        self._level = max(0.0, self._level - (now - self._at) * rate) + count
        self._at = now
        return max(0.0, self._level - burst) / rate
