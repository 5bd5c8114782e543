"""The allocator of the C library: keeps large blocks, and returns unused memory to the system."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from collections.abc import Callable

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_LARGE: Final = 16 * 1024 * 1024
"""Bytes up to which a block is taken from the heap."""
_KEPT: Final = 64 * 1024 * 1024
"""Bytes at the end of the heap that stay although they are free, until :func:`trim`."""


def _found(name: str) -> Callable[..., Any] | None:
    """Return a function of glibc, or None in another C library."""
    try:
        return getattr(ctypes.CDLL(None), name, None)
    except OSError:
        return None


_malloc_trim, _mallopt = _found("malloc_trim"), _found("mallopt")


def trim() -> None:
    """Return free memory to the system, also from within the heap; other threads continue.

    The memory of thousands of closed connections is spread over the heap and would stay there.
    """
    if _malloc_trim is not None:
        _malloc_trim(0)


def keep_large_blocks() -> None:
    """Keep the memory of large payloads for the next ones.

    By default glibc maps each large block anew, and the kernel clears its pages: a third of the
    system time of payloads of 1 MiB.
    """
    if _mallopt is not None and _malloc_trim is not None:
        _mallopt(_M_MMAP_THRESHOLD, _LARGE)
        _mallopt(_M_TRIM_THRESHOLD, _KEPT)
