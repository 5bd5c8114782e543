"""File descriptors: clients must not take the last ones, which the broker needs for itself.

A new descriptor is the smallest number that is free. So the number of a new connection says how
many are taken, and nothing need be counted.
"""

from __future__ import annotations

import os
import resource

EXHAUSTED = frozenset({"EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"})
"""Errors of ``accept`` that pass by themselves once others let something go."""
_SPARE = 24
"""Descriptors for what is no client: a new connection to NATS, a file, a page of the web."""


class Descriptors:
    """The descriptors below the limit on open files, less ``spare``."""

    __slots__ = ("_spare",)

    def __init__(self, spare: int = _SPARE) -> None:
        self._spare = spare

    def last(self, descriptor: int) -> bool:
        """Return whether a descriptor that was just made is the last one that clients may have."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return limit != resource.RLIM_INFINITY and descriptor >= limit - self._spare

    def free(self, descriptor: int) -> bool:
        """Return whether clients may have another one; ``descriptor`` is any open one."""
        try:
            trial = os.dup(descriptor)
        except OSError:
            return False
        os.close(trial)
        return not self.last(trial)
