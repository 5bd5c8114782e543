"""The monitored broker, or those of several logs: queries, and their state from poll to poll.

Queries are made in portions that fit into a reply. A name may have 64 KiB, while a NATS server may
allow only 1 MiB per message: then the next queries request less. Rows of several logs name their
``log``, and ``short_log`` for narrow columns.
"""

import asyncio
import math
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from cli.commands.actor_list import sort_key
from cli.commands.status import add_free_space
from cli.logs.broker_client import LiveBroker, TooLarge
from cli.logs.log_brokers import LogBrokers
from cli.logs.reconnecting_client import ReconnectingClient
from cli.top.rates import Percentiles, Rates, totals_of_logs, waiting

Row = dict[str, Any]

KEPT = 600
"""Number of polls kept for the curves: 20 minutes at 2 seconds each."""
_ACTOR_COUNTS = (100, 25, 6, 1)
"""Numbers of rows of the list of actors to request at once, fewer if names are long."""
_SESSION_COUNTS = (200, 50, 12, 3, 1)
"""The same for the items of each list of a session."""

_Answer = TypeVar("_Answer")


async def fewer(
    counts: Sequence[int], ask: Callable[[int], Awaitable[_Answer]]
) -> tuple[_Answer, Sequence[int]]:
    """Return the first answer that is not too large, and the counts from its own on."""
    for number, count in enumerate(counts[:-1]):
        try:
            return await ask(count), counts[number:]
        except TooLarge:
            pass
    return await ask(counts[-1]), counts[-1:]


def highest(parts: Iterable[Sequence[Row]], by: str, count: int) -> list[Row]:
    """Return the rows with the highest values of a figure, of those of each log."""
    by_log = list(parts)
    rows = [row for part in by_log for row in part]
    if len(by_log) > 1:
        # Figures of sessions have the names of their fields.
        key = (lambda row: row[by] or 0) if rows and by in rows[0] else sort_key(by)
        rows.sort(key=key, reverse=True)
    return rows[:count]


_CURVES: dict[str, Callable[[Rates], float | None]] = {
    "in": lambda rates: sum(rates.messages_in),
    "out": lambda rates: sum(rates.messages_out),
    "gate": lambda rates: _percentile(rates.commit, "p99"),
    "gate p50": lambda rates: _percentile(rates.commit, "p50"),
    "loop": lambda rates: _percentile(rates.lag, "p99"),
    "broker": lambda rates: rates.cpu,
}
"""The curves of rates; ``waiting`` is one more."""


class History:
    """Curves by name; a missing value is None."""

    def __init__(self, kept: int = KEPT) -> None:
        self._curves: dict[str, deque[float | None]] = {
            name: deque(maxlen=kept) for name in ("waiting", *_CURVES)
        }

    def add(self, status: Mapping[str, Any], rates: Rates | None) -> None:
        """Add a poll; ``rates`` are those since the previous one."""
        values = {name: None if rates is None else of(rates) for name, of in _CURVES.items()}
        self._append({"waiting": waiting(status), **values})

    def skip(self) -> None:
        """Add a poll without a reply."""
        self._append({})

    def _append(self, values: Mapping[str, float | None]) -> None:
        for name, curve in self._curves.items():
            curve.append(values.get(name))

    def curve(self, name: str) -> list[float | None]:
        """Return the values, oldest first."""
        return list(self._curves[name])


def _percentile(percentiles: Percentiles | None, name: str) -> float | None:
    """Return a value of a curve; None if nothing was measured, and beyond the histogram."""
    value: float = math.inf if percentiles is None else getattr(percentiles, name)
    return None if math.isinf(value) else value


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
        self.history = History()
        self._before: dict[str, dict[str, Any]] = {}

    def took(self, statuses: dict[str, dict[str, Any]]) -> Frame:
        """Record replies by node; return the frame to show."""
        status, rates, logs = totals_of_logs(statuses, self._before, self.link.polled)
        self._before = statuses
        self.history.add(status, rates)
        self.frame = Frame(status, rates, self.history, logs)
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
            self.history.skip()

    def leave_gap(self) -> None:
        """Leave a gap in the curves: there are no rates since the replies before it."""
        self.frame, self._before, self.queries.topics_fit = None, {}, True
        self.history.skip()


class TopQueries:
    """Sends queries over a link, and remembers the number of rows that fit into a reply."""

    def __init__(self, link: ReconnectingClient) -> None:
        self._link = link
        self._actor_counts: Sequence[int] = _ACTOR_COUNTS
        self._session_counts: Sequence[int] = _SESSION_COUNTS
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
        statuses = {
            broker.node: status for broker, status in await self._link.poll("status", topics=topics)
        }
        if self._link.polled is not None:
            add_free_space(list(statuses.values()), self._link.polled.directory)
        return statuses

    async def actors(self, by: str, match: str | None = None) -> list[dict[str, Any]]:
        """Request the first actors in an order, those that match a pattern."""
        selection = {} if match is None else {"match": match}
        answers, self._actor_counts = await fewer(
            self._actor_counts,
            lambda count: self._link.each("actors", top={"by": by, "count": count}, **selection),
        )
        parts = [
            [self._labelled(broker, row) for row in answer["rows"]] for broker, answer in answers
        ]
        return highest(parts, by, self._actor_counts[0])

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
        answer, self._session_counts = await fewer(
            self._session_counts,
            lambda most: self._link.ask_of(broker_of_log(log), endpoint, most=most, **request),
        )
        return answer

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
