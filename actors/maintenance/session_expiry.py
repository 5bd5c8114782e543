"""Schedule of expiry checks of offline sessions: names in buckets of a tenth of a second.

An offline session costs an entry here, not a timer. A name occurs once; the callback checks whether
it is really due.
"""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

_BUCKETS_PER_SECOND = 10
_AT_ONCE, _SUBSCRIPTIONS_AT_ONCE = 256, 1024
"""Maximum number of names processed at a time, and of their subscriptions: a fleet that went
offline at the same time also expires at the same time."""
_PAUSE = 0.01


@dataclass(eq=False, repr=False)
class Expiries:
    """Calls back with names when they are due.

    ``after(delay, callback)`` is the broker's timer, ``due(name)`` the callback; it returns how
    many subscriptions it restored.
    """

    _monotonic: Callable[[], float]
    _after: Callable[[float, Callable[[], None]], object]
    _due: Callable[[str], int]

    def __post_init__(self) -> None:
        self._buckets: dict[int, set[str]] = {}
        self._bucket_of: dict[str, int] = {}
        self._order: list[int] = []

    def watch(self, name: str, delay: float) -> None:
        """Call back with a name after some seconds, up to a tenth of a second later.

        If an earlier call was requested before, the callback is called then; it calls this method
        again.
        """
        bucket = int((self._monotonic() + delay) * _BUCKETS_PER_SECOND) + 1
        watched = self._bucket_of.get(name)
        if watched is not None:
            if watched <= bucket:
                return
            self._buckets[watched].discard(name)
        self._bucket_of[name] = bucket
        names = self._buckets.get(bucket)
        if names is not None:
            names.add(name)
            return
        self._buckets[bucket] = {name}
        heapq.heappush(self._order, bucket)
        if self._order[0] == bucket:
            self._arm()

    def forget(self, name: str) -> None:
        """Remove a name."""
        bucket = self._bucket_of.pop(name, None)
        if bucket is not None:
            self._buckets[bucket].discard(name)

    def _arm(self) -> None:
        delay = self._order[0] / _BUCKETS_PER_SECOND - self._monotonic()
        self._after(max(0.0, delay), self._look)

    def _look(self) -> None:
        now = self._monotonic() * _BUCKETS_PER_SECOND
        room, restored = _AT_ONCE, 0
        while self._order and self._order[0] <= now and room:
            names = self._buckets[self._order[0]]
            while names and room:
                room -= 1
                name = names.pop()
                del self._bucket_of[name]
                restored += self._due(name)
                if restored >= _SUBSCRIPTIONS_AT_ONCE:
                    room = 0
            if not names:
                del self._buckets[heapq.heappop(self._order)]
        if not room:
            self._after(_PAUSE, self._look)
        elif self._order:
            self._arm()
