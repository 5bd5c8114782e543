"""A dict in many parts, whose keys can be listed a part at a time.

Copying the keys of a dict with a million entries takes tens of milliseconds, and a dict cannot be
iterated over while it changes. Copying a part of this one takes a tenth of a millisecond. The order
is the same in every process, so everything derived from it is reproducible.
"""

from collections.abc import Iterator
from typing import Generic, TypeVar
from zlib import crc32

T = TypeVar("T")

_PARTS = 256


class ShardedDict(Generic[T]):
    """Values by name."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: tuple[dict[str, T], ...] = tuple({} for _ in range(_PARTS))
        """The parts; a name is in the part of the same number in every object."""

    def of(self, name: str) -> dict[str, T]:
        """Return the part that contains a name."""
        return self.parts[crc32(name.encode()) % _PARTS]

    def __len__(self) -> int:
        """Return the number of values."""
        return sum(map(len, self.parts))

    def __bool__(self) -> bool:
        """Return whether it is not empty; a compiled class does not ask ``__len__``."""
        return len(self) > 0

    def __contains__(self, name: object) -> bool:
        """Return whether there is a value under this name."""
        return isinstance(name, str) and name in self.parts[crc32(name.encode()) % _PARTS]

    def get(self, name: str) -> T | None:
        """Return the value under this name, None when there is none."""
        return self.parts[crc32(name.encode()) % _PARTS].get(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names; names that are added or removed meanwhile may be missed."""
        for part in self.parts:
            yield from [*part]
