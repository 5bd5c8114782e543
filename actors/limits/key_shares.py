"""Shares of the keys for new names: one party alone cannot use up all of them by making up names.

A key of a name is used until the name is erased, and there are at most so many keys. So a *party*,
a network of an address or a verified user, uses at most a part of the free keys a day: what is left
gets smaller and smaller, but never ends. An IPv6 address counts for its /64, /56 and /48. Many
parties together, with users and networks of their own, can still use up all keys.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

_PART: Final = 10
"""A party may use one in so many of the free keys a day, at once or one after the other."""
_DAY: Final = 86_400.0
_PARTIES: Final = 10_000
"""Parties that are remembered, those that used a key last."""


class KeyShares:
    """What parties have used; times are monotonic seconds."""

    def __init__(self) -> None:
        self._used: dict[Hashable, tuple[float, float]] = {}
        """Keys used by each party that its share has not grown back for, and the time of that."""

    def take(self, parties: Sequence[Hashable], free: int, now: float) -> bool:
        """Use one of the ``free`` keys for all of ``parties``.

        Returns whether their shares allow it; otherwise nothing is counted.
        """
        share = max(1.0, free / _PART)
        used = [self._used_by(party, share, now) for party in parties]
        if any(count + 1 > share for count in used):
            return False
        for party, count in zip(parties, used, strict=True):
            self._used.pop(party, None)
            self._used[party] = count + 1, now
        while len(self._used) > _PARTIES:
            del self._used[next(iter(self._used))]
        return True

    def _used_by(self, party: Hashable, share: float, now: float) -> float:
        count, since = self._used.get(party, (0.0, now))
        return max(0.0, count - share * (now - since) / _DAY)
