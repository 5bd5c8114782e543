"""Samples of the broker's status for the curves, taken while pages are open."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable

from cli.top.watched_broker import KEPT, Frame, WatchedBroker
from cli.web.svg_charts import Chart, chart
from cli.web.web_log_client import WebLogClient
from eventstore.task_cancellation import end_tasks
from protocol.errors import FoldmqError

EVERY = 2.0
"""Seconds between samples while a page is open."""
_LOOKS = 30.0
"""Seconds after a request for which a page counts as open."""
_FIRST = 0.4
"""Seconds between the first two samples, after which there are rates."""
_CHARTS = {
    "Messages per second": {"in": "in", "out": "out"},
    "Gate latency": {"p50": "gate p50", "p99": "gate"},
    "Event loop lag": {"p99": "loop"},
    "Messages waiting": {"in flight or queued": "waiting"},
}
"""Titles of charts, with the labels and the names of their curves."""


class Samples:
    """Requests the status while a page is open, and keeps the curves."""

    def __init__(self, link: WebLogClient, clock: Callable[[], float] = time.monotonic) -> None:
        self._broker = WatchedBroker(link, EVERY)
        self._clock = clock
        self._times: deque[float] = deque(maxlen=KEPT)
        self._looked = -math.inf
        self._task: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()

    async def latest(self) -> Frame:
        """Return a recent sample, of several logs added up; raises NoLiveBroker."""
        self._looked = self._clock()
        async with self._lock:
            frame = self._broker.frame
            if frame is None or self._clock() - self._times[-1] > 2 * EVERY:
                frame = await self._take()
            if frame.rates is None:
                await asyncio.sleep(_FIRST)
                frame = await self._take()
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run())
        return frame

    def charts(self) -> list[Chart]:
        """Return the curves, with gaps where the broker was unreachable."""
        curve, times = self._broker.history.curve, list(self._times)
        return [
            chart(title, times, [(label, curve(name)) for label, name in curves.items()])
            for title, curves in _CHARTS.items()
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

    async def _take(self) -> Frame:
        statuses = await self._broker.queries.statuses(topics=True)
        frame = self._broker.took(statuses)
        self._times.append(self._clock())
        return frame

    def _gap(self) -> None:
        if self._broker.frame is not None:
            # A gap has no time: use that of its neighbour.
            self._times.append(self._times[-1])
            self._broker.leave_gap()
