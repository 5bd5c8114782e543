"""Live traces of the same topic in several logs, with their lines in the order of time."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from cli.logs.broker_client import NoLiveBroker, Refused
from cli.logs.trace_client import AWAY_SECONDS, TOKEN_BYTES, Portion, open_trace
from eventstore.display import escaped

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from cli.logs.broker_client import LiveBroker
    from cli.logs.log_brokers import LogBrokers
    from cli.logs.trace_client import LiveTrace

_HOLD_SECONDS = 0.25
"""Seconds for which a line is held back, so that earlier ones of other logs can arrive."""
_RETRY_SECONDS = 1.0
"""Seconds between searches for a broker that is gone."""


class _Held(NamedTuple):
    """A line, or a portion without lines, until it is due."""

    ms: int
    """Time of the line, or of the line of the same log before it."""
    arrived: float
    portion: Portion


class LogTraces:
    """Traces of a topic in all logs, until they are closed; see :func:`open_traces`.

    A trace whose broker goes away begins again when the broker is back.
    """

    def __init__(self, brokers: LogBrokers, wanted: dict[str, Any]) -> None:
        self.brokers = brokers
        """The brokers; ``absent`` are those that are gone now."""
        self._wanted = wanted
        self._queue: asyncio.Queue[Portion] = asyncio.Queue()
        self._held: list[_Held] = []
        """In the order of arrival."""
        self._latest: dict[str, int] = {}
        """Time of the last line of each log in milliseconds."""
        self._tasks: list[asyncio.Task[None]] = []

    async def portions(self) -> AsyncIterator[Portion]:
        """Yield lines that name their ``log``, and portions without lines about one log.

        Lines of all logs are sorted by the clocks of their brokers. The cause ``away`` says that a
        broker is not there, and ``back`` that its trace goes on. Raises NoLiveBroker if all are
        gone.
        """
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._seconds_left()):
                    self._hold(await self._queue.get())
            for portion in self._due(time.monotonic() - _HOLD_SECONDS):
                yield portion
            if not self.brokers.present:
                while not self._queue.empty():
                    self._hold(self._queue.get_nowait())
                for portion in self._due(time.monotonic()):
                    yield portion
                raise next(iter(self.brokers.absent.values()))

    def _seconds_left(self) -> float | None:
        """Return the seconds until something is due."""
        if not self._held:
            return None
        return max(0.0, self._held[0].arrived + _HOLD_SECONDS - time.monotonic())

    def _hold(self, portion: Portion) -> None:
        now, log = time.monotonic(), portion.log
        latest = self._latest.get(log, 0)
        for line in portion.lines:
            # A clock that is set back does not change the order within a log.
            ms = line.get("ms")
            latest = max(latest, ms if isinstance(ms, int) else 0)
            self._held.append(_Held(latest, now, Portion([{"log": log, **line}])))
        self._latest[log] = latest
        if portion.skipped or portion.lost or portion.cause is not None:
            self._held.append(_Held(latest, now, replace(portion, lines=[])))

    def _due(self, arrived: float) -> list[Portion]:
        """Remove what arrived until then, and all that is not later; lines together."""
        if not self._held or self._held[0].arrived > arrived:
            return []
        through = max(held.ms for held in self._held if held.arrived <= arrived)
        due = sorted((one for one in self._held if one.ms <= through), key=lambda one: one.ms)
        self._held = [one for one in self._held if one.ms > through]
        portions: list[Portion] = []
        for one in due:
            if one.portion.lines and portions and portions[-1].lines:
                portions[-1].lines.extend(one.portion.lines)
            else:
                portions.append(one.portion)
        return portions

    async def begin(self) -> None:
        """Start all traces; raises Refused, and NoLiveBroker if no broker answers."""
        begun: list[asyncio.Future[None]] = []
        for broker in self.brokers.present:
            begun.append(asyncio.get_running_loop().create_future())
            self._tasks.append(asyncio.create_task(self._follow(broker, begun[-1])))
        await asyncio.gather(*begun)
        if not self.brokers.present:
            raise next(iter(self.brokers.absent.values()))

    async def end(self) -> None:
        """End all traces."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, broker: LiveBroker, begun: asyncio.Future[None]) -> None:
        try:
            await self._keep_on(broker, begun)
        except Exception as error:
            if begun.done():
                raise
            begun.set_exception(error)

    async def _keep_on(self, broker: LiveBroker, begun: asyncio.Future[None]) -> None:
        """Pass the portions of a trace on, and start it again after each end."""
        token = secrets.token_hex(TOKEN_BYTES)
        while True:
            try:
                async with open_trace(broker, **self._wanted) as trace:
                    token = trace.token
                    self._begins(broker, begun)
                    why = await self._pass_on(broker, trace)
            except Refused as error:
                if not begun.done():
                    raise
                why = NoLiveBroker(str(error))
            except NoLiveBroker as error:
                why = error
            if broker.node not in self.brokers.absent:
                self.brokers.absent[broker.node] = why
                self._queue.put_nowait(Portion([], ended=str(why), cause="away", log=broker.node))
            if not begun.done():
                begun.set_result(None)
            await self._until_there(broker, token)

    def _begins(self, broker: LiveBroker, begun: asyncio.Future[None]) -> None:
        if self.brokers.absent.pop(broker.node, None) is not None:
            self._queue.put_nowait(Portion([], cause="back", log=broker.node))
        if not begun.done():
            begun.set_result(None)

    async def _pass_on(self, broker: LiveBroker, trace: LiveTrace) -> NoLiveBroker:
        """Pass the portions on until the trace ends; return why it does."""
        ended = ""
        async for portion in trace.portions():
            ended = portion.ended or ""
            self._queue.put_nowait(replace(portion, ended=None, cause=None, log=broker.node))
        return NoLiveBroker(
            f"the broker of node {broker.node} has ended the trace: {escaped(ended, 400)}"
        )

    async def _until_there(self, broker: LiveBroker, token: str) -> None:
        """Wait until a broker answers; ask it to end a trace that it may still have.

        A broker that hangs gets no request for a new one: it would start them all at once.
        """
        while True:
            await asyncio.sleep(_RETRY_SECONDS)
            with contextlib.suppress(TimeoutError, NoLiveBroker):
                async with asyncio.timeout(AWAY_SECONDS):
                    with contextlib.suppress(Refused):
                        await broker.ask("trace.stop", token=token)
                    return


@contextlib.asynccontextmanager
async def open_traces(brokers: LogBrokers, **wanted: Any) -> AsyncIterator[LogTraces]:
    """Run a trace of a ``topic`` in each log with at most ``rate`` lines per second each.

    Raises Refused if there can be no such trace, NoLiveBroker if no broker answers; those that do
    not are in ``brokers.absent``.
    """
    traces = LogTraces(brokers, wanted)
    try:
        await traces.begin()
        yield traces
    finally:
        await traces.end()
