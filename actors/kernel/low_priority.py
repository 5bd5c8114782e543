"""Low-priority actors: they run in short slices, with breaks while there is other work."""

from collections import deque
from typing import Final

from actors.kernel.actor import LoopActor

SLICE: Final = 0.0005
"""Seconds of a turn after which no further low-priority actor runs while there is other work."""
_LONGEST_SLICE: Final = 0.004
"""Maximum length in seconds of a slice that begins late, and length of a slice without other work:
the events of a longer turn share a record."""
_BREAK: Final = 1.0
_LONGEST_BREAK: Final = 0.05
"""Length of the break after a slice, relative to the slice; its maximum in seconds."""


class LowPriorityQueue:
    """Low-priority actors, and the breaks between their time slices."""

    def __init__(self) -> None:
        self.others: deque[LoopActor] = deque()
        self._first: deque[LoopActor] = deque()
        """Actors that run before the others."""
        self.cooling_down = False
        """Whether there is a break."""
        self._cooldown_due = 0.0
        """When the break should have ended; 0 once that was taken into account."""

    def __bool__(self) -> bool:
        """Return whether actors are queued."""
        return bool(self.others) or bool(self._first)

    def add(self, actor: LoopActor, *, first: bool) -> None:
        """Add an actor; ``first``: before those added without it."""
        (self._first if first else self.others).append(actor)

    def pop(self) -> LoopActor:
        """Remove and return the next actor."""
        return (self._first or self.others).popleft()

    def begin_slice(self, now: float, *, alone: bool) -> float:
        """Return the seconds of a slice that begins now; ``alone``: there is no other work."""
        # On a busy host breaks last longer than planned: a longer slice keeps the share.
        late = max(0.0, now - self._cooldown_due) if self._cooldown_due else 0.0
        self._cooldown_due = 0.0
        if alone:
            return _LONGEST_SLICE
        return min(SLICE + late, _LONGEST_SLICE)

    def begin_cooldown(self, took: float, now: float) -> float:
        """Begin a break after a slice that took some seconds; return how long it is."""
        pause = min(_BREAK * took, _LONGEST_BREAK)
        self.cooling_down, self._cooldown_due = True, now + pause
        return pause
