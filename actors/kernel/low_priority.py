"""Actors that were put off: they run when others have nothing left to do."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from actors.kernel.actor import LoopActor

SLICE = 0.0005
"""Seconds of a turn after which no more work is begun that was put off."""
_LONGEST_SLICE = 0.004
"""What such a slice may be extended to when it came late."""
_BREAK, _LONGEST_BREAK = 1.0, 0.05
"""How much longer than such a slice the break after it is; seconds that it lasts at most."""


class LowPriorityQueue:
    """Actors that were put off, and the breaks between their slices of time."""

    __slots__ = ("_cooldown_due", "_first", "cooling_down", "others")

    def __init__(self) -> None:
        self.others: deque[LoopActor] = deque()
        self._first: deque[LoopActor] = deque()
        """Those that come before the others."""
        self.cooling_down = False
        """What was put off waits for a moment."""
        self._cooldown_due = 0.0
        """When that moment was to end; 0 after it was taken into account."""

    def __bool__(self) -> bool:
        """Return whether actors are put off."""
        return bool(self.others) or bool(self._first)

    def add(self, actor: LoopActor, *, first: bool) -> None:
        """Add an actor; ``first``: before those that are added without."""
        (self._first if first else self.others).append(actor)

    def pop(self) -> LoopActor:
        """Return the next actor, which is put off no longer."""
        return (self._first or self.others).popleft()

    def begin_slice(self, now: float) -> float:
        """Return the seconds of a slice that begins now."""
        # On a busy host breaks last longer than they should: the share stays the same.
        late = max(0.0, now - self._cooldown_due) if self._cooldown_due else 0.0
        self._cooldown_due = 0.0
        return min(SLICE + late, _LONGEST_SLICE)

    def begin_cooldown(self, took: float, now: float) -> float:
        """Begin a break after a slice that took some seconds; return how long it is."""
        pause = min(_BREAK * took, _LONGEST_BREAK)
        self.cooling_down, self._cooldown_due = True, now + pause
        return pause
