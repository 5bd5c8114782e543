"""Parsing of requests to the inspector."""

from __future__ import annotations

from difflib import SequenceMatcher
from typing import TYPE_CHECKING, Any, Final

from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN = 120
_ALIKE: Final = 0.8
"""Lowest similarity, from 0 to 1, of a name that is suggested."""
_MAX_MORE: Final = 3
"""Maximum difference in length, in characters, of a suggested name."""


class Refused(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A query that cannot be answered, or a change that is refused; the text gives the reason."""


class TooLarge(Refused):
    """The answer would be too large: the caller can request fewer items."""


class NotReady(Refused):
    """The broker cannot answer completely yet: the caller can ask another broker, or later."""


def shown(name: str) -> str:
    """Return a name for use in a message: quoted, escaped, shortened."""
    return ascii(name if len(name) <= _SHOWN else name[:_SHOWN] + "...")


class NameSimilarity:
    """Rates how similar other names are to one; those that nearly match can be suggested."""

    def __init__(self, name: str) -> None:
        self._name = name.casefold()
        self._matcher = SequenceMatcher(None, b=self._name, autojunk=False)

    def of(self, other: str) -> float:
        """Return the similarity, from 0 to 1; 0 unless it is high. Case does not matter."""
        if not 0 < len(other) <= _SHOWN or abs(len(other) - len(self._name)) > _MAX_MORE:
            return 0.0
        other = other.casefold()
        if other == self._name:
            return 1.0
        matcher = self._matcher
        matcher.set_seq1(other)
        if matcher.real_quick_ratio() < _ALIKE or matcher.quick_ratio() < _ALIKE:
            return 0.0
        rate = matcher.ratio()
        return rate if rate >= _ALIKE else 0.0


def text(request: Mapping[str, Any], field: str) -> str:
    """Return a text field; raises Refused if it is not text."""
    value = request.get(field)
    if not isinstance(value, str):
        raise Refused(f"{field} must be text")
    return value


def optional(request: Mapping[str, Any], field: str) -> str | None:
    """Return an optional text field, or None."""
    return None if request.get(field) is None else text(request, field)


def flag(request: Mapping[str, Any], field: str) -> bool:
    """Return a Boolean field; False if it is missing."""
    value = request.get(field, False)
    if not isinstance(value, bool):
        raise Refused(f"{field} must be true or false")
    return value


def number(
    request: Mapping[str, Any], field: str, default: int, most: int, called: str = ""
) -> int:
    """Return a whole number from 0 to ``most``."""
    value = request.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise Refused(f"{called or field} must be a whole number up to {most}")
    return value
