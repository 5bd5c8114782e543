"""Names by the time at which something of them expires."""

from __future__ import annotations

from heapq import heapify, heappop, heappush
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_SPARE = 1024
"""Entries that are out of date and stay, at least."""


class ExpiryQueue:
    """A heap of (Unix time in seconds, name).

    An entry holds while ``expires`` of its name, which the callers give, still is its time; others
    are dropped when they are met, or when half of all are such.
    """

    __slots__ = ("_heap", "_most")

    def __init__(self) -> None:
        self._heap: list[tuple[int, str]] = []
        self._most = _SPARE
        """Entries from which on it is looked for those that are out of date."""

    def add(self, name: str, expires: int, of: Callable[[str], int]) -> None:
        """Add a name; ``of`` returns when it expires."""
        heappush(self._heap, (expires, name))
        if len(self._heap) > self._most:
            self._heap = [entry for entry in {*self._heap} if of(entry[1]) == entry[0]]
            heapify(self._heap)
            self._most = 2 * len(self._heap) + _SPARE

    def first(self, of: Callable[[str], int]) -> int:
        """Return the time of the first entry; 0: there is none."""
        heap = self._heap
        while heap and of(heap[0][1]) != heap[0][0]:
            heappop(heap)
        return heap[0][0] if heap else 0

    def due(self, now: int, of: Callable[[str], int]) -> list[str]:
        """Return the names whose time has come, the first ones first; they stay."""
        found: dict[tuple[int, str], None] = {}
        while self.first(of) and self._heap[0][0] <= now:
            found[heappop(self._heap)] = None
        for entry in found:
            heappush(self._heap, entry)
        return [name for _, name in found]
