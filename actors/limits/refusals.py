"""Counts what is refused, by reason, and says so now and then: never once for each."""

from __future__ import annotations

from collections import Counter

import structlog

_log = structlog.get_logger("foldmq")

_EVERY = 10.0
"""Seconds between log lines about the same reason, at least."""


class Refusals:
    """What was refused, or closed, because a bound was reached; ``what`` begins the log lines."""

    __slots__ = ("_said", "_what", "counts")

    def __init__(self, what: str) -> None:
        self._what = what
        self._said: dict[str, tuple[float, int]] = {}
        """For each reason: when it was said last, and how many there had been."""
        self.counts: Counter[str] = Counter()
        """How many, by reason, since the start."""

    def add(self, reason: str, now: float, **whose: str | float | None) -> None:
        """Count one; ``whose`` goes into the log if it is said."""
        self.counts[reason] += 1
        count = self.counts[reason]
        said = self._said.get(reason)
        if said is None or now - said[0] >= _EVERY:
            self._said[reason] = (now, count)
            _log.warning(self._what, reason=reason, times=count - (said[1] if said else 0), **whose)
