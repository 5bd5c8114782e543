"""Gives memory back to the system that nobody uses any more."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _found() -> Callable[[int], Any] | None:
    """Return glibc's malloc_trim(3); None elsewhere, where memory is given back unasked."""
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None


_malloc_trim = _found()


def trim() -> None:
    """Give back what is free, from within the heap as well; other threads go on meanwhile.

    What thousands of connections took is spread over the heap and stays there otherwise.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)
