"""The monitored broker, or those of several logs: queries, and their state from poll to poll.

Queries are made in portions that fit into a reply. A name may have 64 KiB, while a NATS server may
allow only 1 MiB per message: then the next queries request less. Rows of several logs name their
``log``, and ``short_log`` for narrow columns.
"""

import asyncio
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cli.commands.actor_list import sort_key
from cli.commands.status import add_free_space
from cli.logs.broker_client import LiveBroker, TooLarge
from cli.logs.log_brokers import LogBrokers
from cli.logs.reconnecting_client import ReconnectingClient
from cli.top.columns import Row
from cli.top.rates import Percentiles, Rates, totals_of_logs, waiting

KEPT = 600
"""Number of polls kept for the curves: 20 minutes at 2 seconds each."""
ACTORS_ASKED = 100
"""Maximum number of rows of the list of actors."""
SESSION_ROWS = 200
"""Maximum number of items of each list of a session."""
_LESS = 4


class History:
    """Curves by name; a missing value is None."""

    NAMES = ("in", "out", "gate", "loop", "broker", "waiting")

    def __init__(self, kept: int = KEPT) -> None:
        self._curves: dict[str, deque[float | None]] = {
            name: deque(maxlen=kept) for name in self.NAMES
        }

    def add(self, status: Mapping[str, Any], rates: Rates | None) -> None:
        """Add a poll; ``rates`` are those since the previous one."""
        values: dict[str, float | None] = {
            "waiting": waiting(status),
        }
        if rates is not None:
            values |= {
                "in": sum(rates.messages_in),
                "out": sum(rates.messages_out),
                "gate": _p99(rates.commit),
                "loop": _p99(rates.lag),
                "broker": rates.cpu,
            }
        self._append(values)

    def skip(self) -> None:
        """Add a poll without a reply."""
        self._append({})

    def curve(self, name: str) -> list[float | None]:
        """Return the values, oldest first."""
        return list(self._curves[name])

    def _append(self, values: Mapping[str, float | None]) -> None:
        for name, curve in self._curves.items():
            curve.append(values.get(name))


def _p99(percentiles: Percentiles | None) -> float | None:
    """Return the maximum of a curve; 0 without values."""
    if percentiles is None:
        return 0.0
    return None if math.isinf(percentiles.p99) else percentiles.p99


@dataclass(frozen=True, slots=True)
class Frame:
    """The result of one poll, with the history."""

    status: dict[str, Any]
    rates: Rates | None
    history: History
    logs: Sequence[Row] = ()
    """A row for each log, if there are several."""


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


class TopQueries:
    """Sends queries over a link, and remembers the number of rows that fit into a reply."""

    def __init__(self, link: ReconnectingClient) -> None:
        self._link = link
        self._actors = ACTORS_ASKED
        self._rows = SESSION_ROWS
        self.topics_fit = True
        """Whether the busiest topics fit into a reply."""

    @property
    def several(self) -> bool:
        """Whether there are several logs."""
        polled = self._link.polled
        return polled is not None and polled.several

    async def statuses(self, *, topics: bool) -> dict[str, dict[str, Any]]:
        """Poll the status of each broker, by node.

        With ``topics`` also the busiest topics, if they fit.
        """
        if topics and self.topics_fit:
            try:
                return await self._statuses(topics=True)
            except TooLarge:
                self.topics_fit = False
        return await self._statuses(topics=False)

    async def _statuses(self, *, topics: bool) -> dict[str, dict[str, Any]]:
        found = {
            broker.node: status for broker, status in await self._link.poll("status", topics=topics)
        }
        if self._link.polled is not None:
            add_free_space(list(found.values()), self._link.polled.directory)
        return found

    async def actors(self, by: str, match: str | None = None) -> list[dict[str, Any]]:
        """Request the first actors in an order, those that match a pattern."""
        wanted = {} if match is None else {"match": match}
        while True:
            try:
                top = {"by": by, "count": self._actors}
                answers = await self._link.each("actors", top=top, **wanted)
            except TooLarge:
                if self._actors == 1:
                    raise
                self._actors = max(1, self._actors // _LESS)
            else:
                rows = [
                    self._labelled(broker, row)
                    for broker, answer in answers
                    for row in answer["rows"]
                ]
                if self.several:
                    rows.sort(key=sort_key(by), reverse=True)
                    del rows[self._actors :]
                return rows

    def _labelled(self, broker: LiveBroker, row: dict[str, Any]) -> dict[str, Any]:
        polled = self._link.polled
        if polled is None or not polled.several:
            return row
        return {"short_log": polled.short(broker.node), **polled.labelled(broker, row)}

    async def actor(self, actor: str, log: str = "") -> dict[str, Any]:
        """Request one actor, of a log if there are several; if it is a session, in full."""
        return await self._much(log, "actor", id=actor)

    async def session(self, client: str, log: str = "") -> dict[str, Any]:
        """Request a session, of a log if there are several."""
        return await self._much(log, "session", client=client)

    async def _much(self, log: str, endpoint: str, **request: Any) -> dict[str, Any]:
        while True:
            try:
                return await self._link.ask_of(
                    broker_of_log(log), endpoint, most=self._rows, **request
                )
            except TooLarge:
                if self._rows == 1:
                    raise
                self._rows = max(1, self._rows // _LESS)

    async def receivers(self, topic: str) -> dict[str, Any]:
        """Request the first page of receivers of a topic, of each log."""
        answers = await self._link.each("subscriptions", topic=topic)
        retained = (
            self._labelled(broker, answer["retained"])
            for broker, answer in answers
            if answer["retained"]
        )
        return {
            "rows": [
                self._labelled(broker, row) for broker, answer in answers for row in answer["rows"]
            ],
            "more": any(answer["more"] for _, answer in answers),
            "retained": next(retained, None),
        }


def broker_of_log(log: str) -> Callable[[LogBrokers], LiveBroker]:
    """Return the choice of the broker of a log; without a name, of the only one."""
    if log:
        return lambda brokers: brokers.of_log(log)
    return lambda brokers: brokers.only("this is about the broker")
