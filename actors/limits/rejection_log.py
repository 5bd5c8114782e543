"""Counts what is refused, by reason, and says so now and then: never once for each."""

from __future__ import annotations

from collections import Counter

import structlog

_log = structlog.get_logger("foldmq")

_EVERY = 10.0
"""Seconds between log lines about the same reason, at least."""


class RejectionLog:
    """What was refused, or closed, because a bound was reached; ``what`` begins the log lines.

    Of each reason ``lines`` are said in ten seconds. ``counts`` may be shared with others.
    """

    __slots__ = ("_lines", "_said", "_what", "counts")

    def __init__(self, what: str, lines: int = 1, counts: Counter[str] | None = None) -> None:
        self._what = what
        self._lines = lines
        self._said: dict[str, _LoggedReason] = {}
        self.counts: Counter[str] = Counter() if counts is None else counts
        """How many, by reason, since the start."""

    def add(self, reason: str, now: float, number: int = 1, **whose: str | float | None) -> None:
        """Count some; ``whose`` goes into the log if it is said."""
        self.counts[reason] += number
        count = self.counts[reason]
        said = self._said.setdefault(reason, _LoggedReason(now))
        if now - said.since >= _EVERY:
            said.since, said.lines = now, 0
        if said.lines < self._lines:
            said.lines += 1
            _log.warning(self._what, reason=reason, times=count - said.count, **whose)
            said.count = count


class _LoggedReason:
    """What was said of a reason: since when, how many lines, and how many there had been then."""

    __slots__ = ("count", "lines", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.lines = 0
        self.count = 0
