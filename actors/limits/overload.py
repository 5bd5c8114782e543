"""Overload detection: the broker has had more work than it can do for some time.

Machines stall occasionally, so a single late sample does not mean overload. Time above the limit
fills a bucket, time below half of the limit empties it. Overload begins when the bucket is full and
ends when it is empty.
"""

from __future__ import annotations

import structlog

_log = structlog.get_logger("foldmq")

_LONGEST_STEP = 1.0
"""Maximum seconds that one sample counts for: after a stall there is one late sample."""


class Overload:
    """Detects that the event loop or the log is too slow; fed with several samples a second."""

    __slots__ = ("_after", "_commit", "_filled", "_lag", "_last", "_since", "reason")

    def __init__(self, lag: float, commit: float, after: float) -> None:
        self._lag = lag
        self._commit = commit
        self._after = after
        self._filled = {"loop_lag": 0.0, "commit_latency": 0.0}
        self._last: float | None = None
        self._since = 0.0
        self.reason: str | None = None
        """Reason to refuse new connections: "loop_lag", "commit_latency"; None: there is none."""

    def change(self, lag: float, commit: float, after: float) -> None:
        """Apply other limits, in seconds; 0 disables one."""
        self._lag, self._commit, self._after = lag, commit, after

    def sample(self, lag: float, commit: float, now: float) -> None:
        """Record the lag of the event loop, and the age of the oldest record not on disk."""
        step = 0.0 if self._last is None else min(now - self._last, _LONGEST_STEP)
        self._last = now
        for reason, seen, bound in (
            ("loop_lag", lag, self._lag),
            ("commit_latency", commit, self._commit),
        ):
            filled = self._filled[reason]
            if not bound:
                filled = 0.0
            elif seen > bound:
                filled = min(self._after, filled + step)
            elif seen <= bound / 2:
                filled = max(0.0, filled - step)
            self._filled[reason] = filled
        self._decide(now, lag, commit)

    def _decide(self, now: float, lag: float, commit: float) -> None:
        if self.reason is not None:
            if self._filled[self.reason] > 0:
                return
            _log.info("overload has ended", reason=self.reason, seconds=round(now - self._since, 1))
            self.reason = None
        for reason, filled in self._filled.items():
            if filled >= self._after and filled > 0:
                self.reason = reason
                self._since = now
                _log.warning(
                    "overloaded: new connections are refused",
                    reason=reason,
                    loop_lag_s=round(lag, 3),
                    commit_s=round(commit, 3),
                )
                return
