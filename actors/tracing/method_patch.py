"""Functions that stand in for methods of one object, for a while."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


class Shadow:
    """A function in the place of an object's method, while it is put there.

    ``make`` is given what is there, to be called, and returns the function. Nobody else pays for
    it: the method itself has no check, and when the function is taken away again, no trace of it
    is left in the object.
    """

    __slots__ = ("_before", "_make", "_name", "_owner", "_put")

    def __init__(
        self, owner: object, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]
    ) -> None:
        self._owner = owner
        self._name = name
        self._make = make
        self._put = False
        self._before: Callable[..., Any] | None = None
        """What stood in the method's place before."""

    def put(self) -> None:
        """Put the function in the method's place, unless it is there."""
        if self._put:
            return
        found = getattr(self._owner, self._name)
        method = getattr(type(self._owner), self._name)
        self._before = None if getattr(found, "__func__", None) is method else found
        setattr(self._owner, self._name, self._make(found))
        self._put = True

    def remove(self) -> None:
        """Take the function away, if it is there."""
        if not self._put:
            return
        self._put = False
        if self._before is None:
            delattr(self._owner, self._name)
        else:
            setattr(self._owner, self._name, self._before)
            self._before = None
