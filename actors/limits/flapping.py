"""Flapping clients: those that connect too often are refused for a while.

Each connect and each end of a connection is an event on disk, so a client that does nothing else
costs more than one that publishes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from actors.limits.token_bucket import Buckets

if TYPE_CHECKING:
    from collections.abc import Hashable


class Flapping:
    """Counts connects by key, such as user and client identifier.

    ``connects`` within ``window`` seconds are allowed; with one more, the key is refused for
    ``backoff`` seconds. Connects during that time do not extend it, so a client that keeps trying
    is accepted afterwards. At most ``most`` keys are remembered.
    """

    __slots__ = ("_backoff", "_most", "_refused_until", "_seen")

    def __init__(self, connects: int, window: float, backoff: float, most: int = 10_000) -> None:
        self._seen = Buckets(connects / window, float(connects), most) if connects else None
        self._backoff = backoff
        self._most = most
        self._refused_until: dict[Hashable, float] = {}
        """End of each refusal, in order, since all refusals have the same duration."""

    def __len__(self) -> int:
        """Return the number of refused keys."""
        return len(self._refused_until)

    def refuses(self, key: Hashable, now: float) -> bool:
        """Return whether a key is refused, without counting anything."""
        return self._refused_until.get(key, now) > now

    def connects(self, key: Hashable, now: float) -> float:
        """Count a connect; return for how many seconds the key is refused, 0 if it is not."""
        if self._seen is None:
            return 0.0
        until = self._refused_until.get(key)
        if until is not None:
            if until > now:
                return until - now
            del self._refused_until[key]
        if self._seen.allows(key, now):
            self._seen.take(key, 1, now)
            return 0.0
        if len(self._refused_until) >= self._most:
            del self._refused_until[next(iter(self._refused_until))]
        self._refused_until[key] = now + self._backoff
        return self._backoff

    def sweep(self, now: float) -> None:
        """Remove keys whose refusal ended or whose connects are old; to be called once a second."""
        if self._seen is not None:
            self._seen.forget_full(now)
        while self._refused_until:
            first = next(iter(self._refused_until))
            if self._refused_until[first] > now:
                break
            del self._refused_until[first]
