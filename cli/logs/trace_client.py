"""A client of live traces of a running broker, or of all logs with their lines by time."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import nats.errors
import orjson
from nats.aio.subscription import Subscription

from cli.logs.broker_client import LiveBroker, NoLiveBroker, Refused
from cli.logs.log_brokers import LogBrokers
from eventstore.display import escaped
from protocol.errors import FoldmqError

_SUBJECTS = "foldmq.trace"
_KEEP_SECONDS = 4.0
"""Seconds between renewals of a trace; the broker ends it after 15 s without one."""
_WAIT_SECONDS = 0.25
AWAY_SECONDS = 3.0
"""Seconds without the NATS server, or without a reply, before the trace fails."""
_STOP_SECONDS = 2.0
TOKEN_BYTES = 16


@dataclass(frozen=True, slots=True)
class Portion:
    """Lines of a trace with notes about missing lines and the end."""

    lines: list[dict[str, Any]]
    """As ``docs/nats-api.md`` describes them."""
    skipped: int = 0
    """Number of lines that the broker skipped above the rate limit."""
    lost: bool = False
    """Lines before these were lost in transit."""
    ended: str | None = None
    """Why the trace ended, as text."""
    cause: str | None = None
    """The same as a code: actor, broker, lease or stopped."""
    log: str = ""
    """The log, in a trace of several."""


class LiveTrace:
    """A trace, running until it is closed; see :func:`open_trace`."""

    def __init__(self, broker: LiveBroker, token: str) -> None:
        self.token = token
        """Its name, chosen at random."""
        self._broker = broker
        self._subscription: Subscription | None = None
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()
        self._number = 0
        self._kept = time.monotonic()
        self._heard = time.monotonic()
        self.about: dict[str, Any] = {}
        """The broker's reply, with the traced actors."""

    async def portions(self) -> AsyncIterator[Portion]:
        """Yield portions as they arrive; the last one has the reason for the end.

        Raises NoLiveBroker if the broker is gone, Refused if it does not know the trace.
        """
        while True:
            data = await self._next()
            if data is not None:
                portion = self._read(data)
                yield portion
                if portion.ended is not None:
                    return
            elif time.monotonic() - self._kept >= _KEEP_SECONDS:
                await self._keep()

    async def _next(self) -> bytes | None:
        due = self._kept + _KEEP_SECONDS - time.monotonic()
        if due <= 0:
            # A steady flow of lines must not prevent renewals.
            return None
        try:
            async with asyncio.timeout(min(due, _WAIT_SECONDS)):
                return await self._queue.get()
        except TimeoutError:
            pass
        now = time.monotonic()
        if self._broker.client.is_connected:
            self._heard = now
        elif now - self._heard > AWAY_SECONDS:
            raise self._gone()
        return None

    def _gone(self) -> NoLiveBroker:
        return NoLiveBroker(f"the broker of node {self._broker.node} is gone")

    async def _keep(self) -> None:
        self._kept = time.monotonic()
        try:
            async with asyncio.timeout(AWAY_SECONDS):
                await self._broker.ask("trace.keep", token=self.token)
        except TimeoutError:
            raise self._gone() from None
        except Refused:
            # It has ended; the final portion may still be in transit.
            if self._queue.empty():
                await asyncio.sleep(_WAIT_SECONDS)
            if self._queue.empty():
                raise

    def _read(self, data: bytes) -> Portion:
        try:
            message = orjson.loads(data)
            number = int(message["number"])
            lines = [line for line in message["lines"] if isinstance(line, dict)]
            skipped = int(message["skipped"])
        except (ValueError, KeyError, TypeError):
            raise NoLiveBroker(
                "the broker sent lines that this foldmq does not understand: check that both "
                "have the same version"
            ) from None
        lost, self._number = number != self._number + 1, number
        return Portion(lines, skipped, lost, message.get("ended"), message.get("cause"))

    async def open(self, **selection: Any) -> None:
        """Start the trace; raises Refused or NoLiveBroker."""
        client = self._broker.client

        async def take(message: Any) -> None:
            self._queue.put_nowait(message.data)

        subject = f"{_SUBJECTS}.{self._broker.node}.{self.token}"
        self._subscription = await client.subscribe(subject, cb=take)
        with contextlib.suppress(nats.errors.Error):
            await client.flush()
        self.about = await self._broker.ask("trace", token=self.token, **selection)
        self._kept = self._heard = time.monotonic()

    async def stop(self) -> None:
        """Ask the broker to end the trace, with a short timeout."""
        with contextlib.suppress(FoldmqError, TimeoutError):
            async with asyncio.timeout(_STOP_SECONDS):
                await self._broker.ask("trace.stop", token=self.token)
        await self.leave()

    async def leave(self) -> None:
        """Receive nothing more."""
        if self._subscription is not None:
            with contextlib.suppress(nats.errors.Error):
                await self._subscription.unsubscribe()


@contextlib.asynccontextmanager
async def open_trace(broker: LiveBroker, **selection: Any) -> AsyncIterator[LiveTrace]:
    """Run a trace of ``actor``, ``client`` or ``topic`` with at most ``rate`` lines per second.

    Raises Refused if there can be no such trace, NoLiveBroker.
    """
    trace = LiveTrace(broker, secrets.token_hex(TOKEN_BYTES))
    try:
        await trace.open(**selection)
    except BaseException:
        await trace.leave()
        raise
    try:
        yield trace
    finally:
        await trace.stop()


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

    def __init__(self, brokers: LogBrokers, selection: dict[str, Any]) -> None:
        self.brokers = brokers
        """The brokers; ``absent`` are those that are gone now."""
        self._wanted = selection
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
        due = sorted((held for held in self._held if held.ms <= through), key=lambda held: held.ms)
        self._held = [held for held in self._held if held.ms > through]
        portions: list[Portion] = []
        for held in due:
            if held.portion.lines and portions and portions[-1].lines:
                portions[-1].lines.extend(held.portion.lines)
            else:
                portions.append(held.portion)
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
async def open_traces(
    brokers: LogBrokers, log: str = "", **selection: Any
) -> AsyncIterator[LiveTrace | LogTraces]:
    """Run a trace of a ``topic`` in each log with at most ``rate`` lines per second each.

    In a single log, or in the one that ``log`` names, as :func:`open_trace`. Raises Refused if
    there can be no such trace, NoLiveBroker if no broker answers; those that do not are in
    ``brokers.absent``.
    """
    if log or not brokers.several:
        async with open_trace(brokers.of_log(log), **selection) as trace:
            yield trace
        return
    traces = LogTraces(brokers, selection)
    try:
        await traces.begin()
        yield traces
    finally:
        await traces.end()
