"""File descriptors: the broker reserves some that clients must not use.

A new descriptor is the smallest free number, so the descriptor of a new connection shows how many
are in use.
"""

import os
import resource

EXHAUSTED = frozenset({"EMFILE", "ENFILE", "ENOBUFS", "ENOMEM"})
"""Errors of ``accept`` that end when resources are released."""
_SPARE = 24
"""Number of descriptors for other uses: a new connection to NATS, a file, a web page."""


class Descriptors:
    """The descriptors below the limit on open files, less ``spare``."""

    __slots__ = ("_spare",)

    def __init__(self, spare: int = _SPARE) -> None:
        self._spare = spare

    def last(self, descriptor: int) -> bool:
        """Return whether a new descriptor is the last one for clients."""
        limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        return limit != resource.RLIM_INFINITY and descriptor >= limit - self._spare

    def free(self, descriptor: int) -> bool:
        """Return whether another one is free for clients; ``descriptor`` is any open one."""
        try:
            trial = os.dup(descriptor)
        except OSError:
            return False
        os.close(trial)
        return not self.last(trial)
