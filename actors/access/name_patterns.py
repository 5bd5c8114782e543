"""Sets of user and client names in which ``*`` matches any characters."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

_ANY = "*"


class NameSet:
    """Names and patterns of names. They are case-sensitive; only ``*`` is special."""

    __slots__ = ("_patterns", "exact")

    def __init__(self, names: Iterable[str]) -> None:
        chosen = set(names)
        self.exact = frozenset(name for name in chosen if _ANY not in name)
        """The names without a ``*``."""
        self._patterns = tuple(sorted(chosen - self.exact))

    @property
    def patterned(self) -> bool:
        """True if the set contains patterns."""
        return bool(self._patterns)

    def __bool__(self) -> bool:
        return bool(self.exact or self._patterns)

    def __contains__(self, name: str) -> bool:
        return name in self.exact or any(
            matches_pattern(pattern, name) for pattern in self._patterns
        )


def matches_pattern(pattern: str, name: str) -> bool:
    """Return whether a name matches a pattern. Linear: no part of the name is tried twice."""
    first, *others = pattern.split(_ANY)
    if not others:
        return name == pattern
    last = others.pop()
    if len(name) < len(first) + len(last):
        return False
    if not (name.startswith(first) and name.endswith(last)):
        return False
    at, end = len(first), len(name) - len(last)
    for part in others:
        found = name.find(part, at, end)
        if found < 0:
            return False
        at = found + len(part)
    return True
