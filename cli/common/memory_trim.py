"""Returns unused memory to the system."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable


def _found() -> Callable[[int], Any] | None:
    """Return glibc's malloc_trim(3), or None where memory is returned automatically."""
    try:
        return getattr(ctypes.CDLL(None), "malloc_trim", None)
    except OSError:
        return None


_malloc_trim = _found()


def trim() -> None:
    """Return free memory to the system, also from within the heap; other threads continue.

    The memory of thousands of closed connections is spread over the heap and would stay there.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)
