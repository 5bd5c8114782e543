"""The monitored broker, or those of several logs: their state from poll to poll."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cli.top.rate_history import History
from cli.top.rates import totals_of_logs
from cli.top.summary_text import Frame
from cli.top.top_queries import TopQueries

if TYPE_CHECKING:
    from cli.logs.reconnecting_client import ReconnectingClient


class WatchedBroker:
    """Converts replies to ``status`` into frames, and records outages."""

    def __init__(self, link: ReconnectingClient, interval: float) -> None:
        self.link = link
        self.queries = TopQueries(link)
        self.interval = interval
        """Seconds between two polls."""
        self.frame: Frame | None = None
        """The latest."""
        self.paused = False
        """Whether the display is paused."""
        self.away_since: float | None = None
        """Unix time in seconds of the first missing reply; None: a broker answers."""
        self.why = ""
        """The error instead of a reply."""
        self.wanted = asyncio.Event()
        """Set when a view needs a reply before the next poll."""
        self._before: dict[str, dict[str, Any]] = {}
        self._history = History()

    def took(self, statuses: dict[str, dict[str, Any]]) -> Frame:
        """Record replies by node; return the frame to show."""
        status, rates, logs = totals_of_logs(statuses, self._before, self.link.polled)
        self._before = statuses
        self._history.add(status, rates)
        self.frame = Frame(status, rates, self._history, logs)
        self.away_since, self.why = None, ""
        return self.frame

    def missed(self, now: float, why: str, *, poll: bool) -> None:
        """Record that there was no reply; ``now`` is Unix time in seconds.

        Only a failed ``poll`` leaves a gap in the curves.
        """
        if self.away_since is None:
            self.away_since = now
        self.why = why
        if poll:
            self._history.skip()
