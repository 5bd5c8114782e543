"""A dict in many parts, so that its keys can be listed a part at a time.

Copying the keys of a dict with a million entries takes tens of milliseconds, and a dict that
changes cannot be walked through. A part of this one is copied in a tenth of a millisecond. The
order is the same in every process: what is derived from it stays so too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Generic, TypeVar
from zlib import crc32

if TYPE_CHECKING:
    from collections.abc import Iterator

T = TypeVar("T")

_PARTS = 256


class ShardedDict(Generic[T]):
    """Values by name."""

    __slots__ = ("parts",)

    def __init__(self) -> None:
        self.parts: tuple[dict[str, T], ...] = tuple({} for _ in range(_PARTS))
        """The parts; those of two objects have the same names under the same number."""

    def of(self, name: str) -> dict[str, T]:
        """Return the part that a name belongs to."""
        return self.parts[crc32(name.encode()) % _PARTS]

    def __len__(self) -> int:
        """Return the number of values."""
        return sum(map(len, self.parts))

    def __contains__(self, name: object) -> bool:
        """Return whether there is a value under this name."""
        return isinstance(name, str) and name in self.parts[crc32(name.encode()) % _PARTS]

    def get(self, name: str) -> T | None:
        """Return the value under this name, None when there is none."""
        return self.parts[crc32(name.encode()) % _PARTS].get(name)

    def __iter__(self) -> Iterator[str]:
        """Yield the names; those that come or go meanwhile may be missed or not."""
        for part in self.parts:
            yield from [*part]
