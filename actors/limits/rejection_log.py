"""Counts rejections by reason and logs them at a limited rate."""

from __future__ import annotations

from collections import Counter, deque
from typing import Final

import structlog

_log = structlog.get_logger("foldmq")

_EVERY = 10.0
"""Minimum seconds between log lines about the same reason."""


MAX_TIMES: Final = 10


class LatestRejections:
    """The latest rejections for one reason."""

    __slots__ = ("times", "whose")

    def __init__(self) -> None:
        self.times: deque[float] = deque(maxlen=MAX_TIMES)
        """Monotonic times, the latest last."""
        self.whose: dict[str, str | float | None] = {}
        """The fields of the last one's log line."""


class RejectionLog:
    """Rejections and disconnects because of a limit; log lines begin with ``what``.

    For each reason at most ``lines`` lines are logged in ten seconds. ``counted`` is the log that
    counts them; by default this one.
    """

    def __init__(self, what: str, lines: int = 1, counted: RejectionLog | None = None) -> None:
        self._what = what
        self._lines = lines
        self._logged: dict[str, _LoggedReason] = {}
        self.counts: Counter[str] = Counter() if counted is None else counted.counts
        """Number of rejections by reason, since the start."""
        self.latest: dict[str, LatestRejections] = {} if counted is None else counted.latest
        """The latest ones by reason."""

    def add(self, reason: str, now: float, number: int = 1, **whose: str | float | None) -> None:
        """Count rejections; ``whose`` are fields of the log line, if there is one."""
        self.counts[reason] += number
        latest = self.latest.get(reason)
        if latest is None:
            latest = self.latest[reason] = LatestRejections()
        latest.times.extend([now] * min(number, MAX_TIMES))
        latest.whose = whose
        count = self.counts[reason]
        logged = self._logged.setdefault(reason, _LoggedReason(now))
        if now - logged.since >= _EVERY:
            logged.since, logged.lines = now, 0
        if logged.lines < self._lines:
            logged.lines += 1
            _log.warning(self._what, reason=reason, times=count - logged.count, **whose)
            logged.count = count


class _LoggedReason:
    """The log lines of a reason: begin of the period, their number, and the count at the last."""

    __slots__ = ("count", "lines", "since")

    def __init__(self, since: float) -> None:
        self.since = since
        self.lines = 0
        self.count = 0
