"""Pauses between attempts: decorrelated jitter between a base and a maximum."""

from __future__ import annotations

import random


class Backoff:
    """The pauses after attempts that failed one after the other."""

    def __init__(self, base: float, most: float, chance: random.Random | None = None) -> None:
        self._base = base
        self._most = most
        self._chance = chance or random.Random()  # noqa: S311 - no secret
        self._last = base

    def reset(self) -> None:
        """Begin again: an attempt succeeded."""
        self._last = self._base

    def next(self, *, longest: bool = False) -> float:
        """Return the next pause in seconds; with ``longest`` about the maximum."""
        if longest:
            return self._most * (0.9 + 0.2 * self._chance.random())
        self._last = min(self._most, self._chance.uniform(self._base, 3 * self._last))
        return self._last
