"""The end of a child process with its parent."""

import ctypes
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


# Loaded before any fork: a child of a process with threads may not be able to.
_libc = ctypes.CDLL(None)


def end_with_parent(signal_number: int) -> None:
    """Make the kernel send this process a signal when its parent ends."""
    _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0)
