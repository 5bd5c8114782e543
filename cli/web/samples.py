"""Samples of the broker's status for the curves, taken while pages are open."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cli.commands.status import add_free_space
from cli.logs.broker_client import TooLarge
from cli.top.rates import Rates, totals_of_logs, waiting
from cli.web.svg_charts import Chart, chart
from cli.web.web_log_client import WebLogClient
from eventstore.task_cancellation import end_tasks
from protocol.errors import FoldmqError

EVERY = 2.0
"""Seconds between samples while a page is open."""
KEPT = 600
_LOOKS = 30.0
"""Seconds after a request for which a page counts as open."""
_FIRST = 0.4
"""Seconds between the first two samples, after which there are rates."""


@dataclass(frozen=True, slots=True)
class Sample:
    """The status of the broker, or of those of all logs, at a moment."""

    time: float
    """Seconds."""
    status: dict[str, Any]
    """That of several logs is added up."""
    rates: Rates | None
    """Rates since the previous sample; None for the first."""
    statuses: dict[str, dict[str, Any]]
    """The status of each broker that answers, by node."""
    logs: list[dict[str, Any]]
    """A row for each log with its status and rates, if there are several."""


class Samples:
    """Requests the status while a page is open, and keeps the samples."""

    def __init__(self, link: WebLogClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._link = link
        self._clock = clock
        self._kept: deque[Sample | None] = deque(maxlen=KEPT)
        self._looked = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def latest(self) -> Sample:
        """Return a recent sample; raises NoLiveBroker."""
        self._looked = self._clock()
        async with self._lock:
            last = self._kept[-1] if self._kept else None
            if last is None or self._clock() - last.time > 2 * EVERY:
                last = await self._take()
            if last.rates is None:
                await asyncio.sleep(_FIRST)
                last = await self._take()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return last

    def charts(self) -> list[Chart]:
        """Return the curves, with gaps where the broker was unreachable."""
        kept = list(self._kept)
        # A gap has no time: use that of its neighbour.
        times: list[float] = []
        for one in kept:
            times.append(one.time if one is not None else (times[-1] if times else 0.0))
        rates = [one.rates if one is not None else None for one in kept]
        commit = [one.commit if one is not None else None for one in rates]
        lag = [one.lag if one is not None else None for one in rates]
        came = [sum(one.messages_in) if one is not None else None for one in rates]
        went = [sum(one.messages_out) if one is not None else None for one in rates]
        held = [waiting(one.status) if one is not None else None for one in kept]
        return [
            chart("Messages per second", times, [("in", came), ("out", went)]),
            chart(
                "Gate latency",
                times,
                [
                    ("p50", [_finite(one.p50) if one is not None else None for one in commit]),
                    ("p99", [_finite(one.p99) if one is not None else None for one in commit]),
                ],
            ),
            chart(
                "Event loop lag",
                times,
                [("p99", [_finite(one.p99) if one is not None else None for one in lag])],
            ),
            chart("Messages waiting", times, [("in flight or queued", held)]),
        ]

    async def close(self) -> None:
        """Stop sampling."""
        if self._task is not None:
            await end_tasks([self._task])

    async def _run(self) -> None:
        while self._clock() - self._looked < _LOOKS:
            await asyncio.sleep(EVERY)
            async with self._lock:
                try:
                    await self._take()
                except FoldmqError:  # the next request reports it
                    self._gap()
        self._gap()

    async def _take(self) -> Sample:
        try:
            answers = await self._link.poll("status", topics=True)
        except TooLarge:  # the names of the busiest topics are too long for a reply
            answers = await self._link.poll("status", topics=False)
        statuses = {broker.node: status for broker, status in answers}
        last = self._kept[-1] if self._kept else None
        before = last.statuses if last is not None else {}
        brokers = self._link.polled
        if brokers is not None and brokers.several:
            add_free_space(list(statuses.values()), brokers.directory)
        status, rates, logs = totals_of_logs(statuses, before, brokers)
        taken = Sample(self._clock(), status, rates, statuses, logs)
        self._kept.append(taken)
        return taken

    def _gap(self) -> None:
        if self._kept and self._kept[-1] is not None:
            self._kept.append(None)


def _finite(value: float) -> float | None:
    return None if math.isinf(value) else value
