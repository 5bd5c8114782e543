"""Messages that were erased before NATS had them, until the cursor passes them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eventstore.format.positions import Position

_AT_ONCE: Final = 1000
"""Maximum number of ranges that are recorded in a turn."""
_MOST: Final = 10 * _AT_ONCE


class ErasedRanges:
    """Ranges of positions in which all messages were erased."""

    def __init__(self) -> None:
        self._ranges: list[tuple[Position, Position, int]] = []
        """Position before each, its last one, and the number of messages."""
        self._continues = False

    @property
    def full(self) -> bool:
        """Whether nothing more may be sent before some are recorded."""
        return len(self._ranges) >= _MOST

    def add(self, place: Position, *, follows: bool) -> None:
        """Note a message; ``follows``: no other one was between it and the one noted before."""
        after, count = place - 1, 1
        if follows and self._continues:
            after, _, before = self._ranges.pop()
            count += before
        self._ranges.append((after, place, count))
        self._continues = follows

    def end_range(self) -> None:
        """Note that a message follows that is sent."""
        self._continues = False

    def take(self, through: Position) -> tuple[list[tuple[Position, Position, int]], Position]:
        """Return the ranges up to a position, some at a time, and the position up to which."""
        ranges = sorted(each for each in self._ranges if each[1] <= through)
        if len(ranges) > _AT_ONCE:
            del ranges[_AT_ONCE:]
            through = ranges[-1][1]
        self._ranges = [each for each in self._ranges if each[1] > through]
        self._continues = self._continues and bool(self._ranges)
        return ranges, through
