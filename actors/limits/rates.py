"""How much a client may publish: what it sends beyond that is not read until later.

Several bounds may apply to one connection: its own, and those it shares with the connections of
its user, of its address and of its listener. It waits for the one that takes longest.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from actors.limits.addresses import network_of
from actors.limits.buckets import Bucket, Buckets

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from actors.limits.options import Quota

_SHORTEST = 0.05
"""Seconds that nothing is read at least, or each packet would be a read of its own."""
_BREAK = 1.0
"""Seconds of sending nothing, though it might, after which a client is patient again."""


class Meter:
    """What one connection is read of."""

    __slots__ = ("_bytes", "_due", "_held_since", "_messages", "_patience")

    def __init__(
        self,
        messages: tuple[Callable[[float, float], float], ...],
        sizes: tuple[Callable[[float, float], float], ...],
        patience: float,
    ) -> None:
        self._messages = messages
        self._bytes = sizes
        self._patience = patience
        self._held_since: float | None = None
        self._due = 0.0

    def took(self, messages: int, size: int, now: float) -> float:
        """Count what one read brought; return for how many seconds nothing more is to be read."""
        wait = 0.0
        if messages:
            for take in self._messages:
                wait = max(wait, take(messages, now))
        for take in self._bytes:
            wait = max(wait, take(size, now))
        if wait <= 0:
            self._held_since = None
            return 0.0
        if self._held_since is None or now > self._due + _BREAK:
            self._held_since = now
        if self._patience:
            # Not longer than the patience lasts: who is gone meanwhile is noticed by reading only,
            # and who then sends even more need not be waited for.
            wait = min(wait, self._held_since + self._patience - now)
        wait = max(wait, _SHORTEST)
        self._due = now + wait
        return wait

    def debt(self, now: float) -> float:
        """Return for how many seconds nothing is to be read because of what others did."""
        return max(take(0.0, now) for take in (*self._messages, *self._bytes))

    def tries_patience(self, now: float) -> bool:
        """Return whether it was held back for too long without a break: it does not slow down."""
        since = self._held_since
        return bool(self._patience) and since is not None and now - since >= self._patience


class PublishRates:
    """The publish rates of all who share one; gives each connection its meter."""

    __slots__ = ("_burst", "_client", "_patience", "_shared")

    def __init__(
        self,
        listeners: Mapping[str, Quota],
        address: Quota,
        user: Quota,
        client: Quota,
        burst: float,
        patience: float,
    ) -> None:
        self._client = client
        self._burst = burst
        self._patience = patience
        self._shared = {
            "address": _Shared(address, burst),
            "user": _Shared(user, burst),
            **{f"listener {name}": _Shared(quota, burst) for name, quota in listeners.items()},
        }

    def meter(self, listener: str, address: str, user: str | None, now: float) -> Meter | None:
        """Return what counts for a connection; None when nothing bounds it."""
        messages: list[Callable[[float, float], float]] = []
        sizes: list[Callable[[float, float], float]] = []
        client = self._client
        if client.publish_rate:
            rate = client.publish_rate
            messages.append(Bucket(rate, _burst_of(rate, self._burst), now).take)
        if client.publish_bytes:
            rate = client.publish_bytes
            sizes.append(Bucket(rate, _burst_of(rate, self._burst), now).take)
        place = f"listener {listener}"
        for kind, who in (("address", network_of(address)), ("user", user), (place, listener)):
            shared = self._shared.get(kind)
            if shared is None or not who:
                continue
            if shared.messages is not None:
                messages.append(partial(shared.messages.take, who))
            if shared.bytes is not None:
                sizes.append(partial(shared.bytes.take, who))
        if not messages and not sizes:
            return None
        return Meter(tuple(messages), tuple(sizes), self._patience)

    def sweep(self, now: float) -> None:
        """Forget what no longer matters; to be called once a second."""
        for shared in self._shared.values():
            for buckets in (shared.messages, shared.bytes):
                if buckets is not None:
                    buckets.forget_full(now)


class _Shared:
    """The buckets of all parties of a kind."""

    __slots__ = ("bytes", "messages")

    def __init__(self, quota: Quota, burst: float) -> None:
        self.messages = _buckets(quota.publish_rate, burst)
        self.bytes = _buckets(quota.publish_bytes, burst)


def _buckets(rate: float, burst: float) -> Buckets | None:
    return Buckets(rate, _burst_of(rate, burst)) if rate else None


def _burst_of(rate: float, seconds: float) -> float:
    return max(1.0, rate * seconds)
