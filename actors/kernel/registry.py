"""The actors of a kernel: lookup by name, iteration by age."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

    from actors.kernel.actor import LoopActor

_SERIAL_DIGITS = 20
"""Maximum digits of an actor's number; Python rejects numbers with thousands of digits."""
_BLOCK_BITS = 8


class ActorRegistry:
    """Actors by their number: adding, finding and removing take constant time."""

    def __init__(self) -> None:
        self._blocks: dict[int, dict[int, LoopActor]] = {}
        """The actors by number, in blocks: iteration copies one block at a time."""
        self._count = 0
        self.population: Counter[type[LoopActor]] = Counter()
        """The number of actors of each class."""

    def __len__(self) -> int:
        """Return the number of actors."""
        return self._count

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not use ``__len__`` for this."""
        return len(self) > 0

    def __iter__(self) -> Iterator[LoopActor]:
        """Yield the actors, oldest first; those that start or stop meanwhile may be missing."""
        for block in list(self._blocks.values()):
            yield from list(block.values())

    def add(self, actor: LoopActor) -> None:
        """Add an actor that starts."""
        self._blocks.setdefault(actor._serial >> _BLOCK_BITS, {})[actor._serial] = actor
        self._count += 1
        self.population[type(actor)] += 1

    def remove(self, actor: LoopActor) -> None:
        """Remove an actor that has stopped; it may have been removed before."""
        number = actor._serial >> _BLOCK_BITS
        block = self._blocks.get(number)
        if block is not None and block.pop(actor._serial, None) is not None:
            if not block:
                del self._blocks[number]
            self._count -= 1
            self.population[type(actor)] -= 1

    def get(self, urn: str) -> LoopActor | None:
        """Return the actor with this name."""
        serial = urn.rpartition(":")[2]
        known = serial.isdecimal() and len(serial) <= _SERIAL_DIGITS
        number = int(serial) if known else 0
        found = self._blocks.get(number >> _BLOCK_BITS, {}).get(number)
        return found if found is not None and found.actor_urn == urn else None
