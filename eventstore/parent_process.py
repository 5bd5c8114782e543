"""The end of a child process with its parent."""

import contextlib
import ctypes
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


# Loaded before any fork: a child of a process with threads may not be able to.
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


def end_with_parent(signal_number: int) -> None:
    """On Linux, let the kernel send this process a signal when its parent ends."""
    with contextlib.suppress(AttributeError):  # elsewhere, or without prctl
        _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)  # type: ignore[union-attr]
