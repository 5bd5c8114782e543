"""Reading the requests that are put to the inspector."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHOWN = 120


class Refused(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """A question that cannot be answered, or a change that is not made; says why."""


class TooLarge(Refused):
    """The answer would be too large: whoever asks can ask for less at once."""


def shown(name: str) -> str:
    """Return a name as it may stand in a sentence: quoted, escaped, cut."""
    return ascii(name if len(name) <= _SHOWN else name[:_SHOWN] + "...")


def text(request: Mapping[str, Any], field: str) -> str:
    """Return a field that is text; raises Refused when it is not."""
    value = request.get(field)
    if not isinstance(value, str):
        raise Refused(f"{field} must be text")
    return value


def optional(request: Mapping[str, Any], field: str) -> str | None:
    """Return a field that is text, None when it is not given."""
    return None if request.get(field) is None else text(request, field)


def flag(request: Mapping[str, Any], field: str) -> bool:
    """Return a field that is true or false; false when it is not given."""
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
