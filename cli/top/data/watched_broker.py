"""The monitored broker, or those of several logs: their state from poll to poll."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from cli.top.data.top_queries import Questions
from cli.top.text import Frame, History, between, between_all, log_rows, status_of_logs

if TYPE_CHECKING:
    from cli.live import ReconnectingClient


class WatchedBroker:
    """Converts replies to ``status`` into frames, and records outages."""

    def __init__(self, link: ReconnectingClient, interval: float) -> None:
        self.link = link
        self.questions = Questions(link)
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
        pairs = {
            node: (self._before[node], status)
            for node, status in statuses.items()
            if node in self._before
        }
        self._before = statuses
        rates = between_all(list(pairs.values()))
        brokers = self.link.polled
        if brokers is not None and brokers.several:
            status = status_of_logs(statuses, brokers)
            each = {node: between(*pair) for node, pair in pairs.items()}
            logs = log_rows(statuses, each, brokers)
        else:
            (status,) = statuses.values()
            logs = []
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
