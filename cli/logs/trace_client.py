"""A client of live traces of a running broker."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import nats.errors
import orjson

from cli.logs.broker_client import LiveBroker, NoLiveBroker, Refused
from protocol.errors import FoldmqError

if TYPE_CHECKING:
    from nats.aio.subscription import Subscription

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
            found = orjson.loads(data)
            number = int(found["number"])
            lines = [line for line in found["lines"] if isinstance(line, dict)]
            skipped = int(found["skipped"])
        except (ValueError, KeyError, TypeError):
            raise NoLiveBroker(
                "the broker sent lines that this foldmq does not understand: check that both "
                "have the same version"
            ) from None
        lost, self._number = number != self._number + 1, number
        return Portion(lines, skipped, lost, found.get("ended"), found.get("cause"))

    async def open(self, **wanted: Any) -> None:
        """Start the trace; raises Refused or NoLiveBroker."""
        client = self._broker.client

        async def take(message: Any) -> None:
            self._queue.put_nowait(message.data)

        subject = f"{_SUBJECTS}.{self._broker.node}.{self.token}"
        self._subscription = await client.subscribe(subject, cb=take)
        with contextlib.suppress(nats.errors.Error):
            await client.flush()
        self.about = await self._broker.ask("trace", token=self.token, **wanted)
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
async def open_trace(broker: LiveBroker, **wanted: Any) -> AsyncIterator[LiveTrace]:
    """Run a trace of ``actor``, ``client`` or ``topic`` with at most ``rate`` lines per second.

    Raises Refused if there can be no such trace, NoLiveBroker.
    """
    trace = LiveTrace(broker, secrets.token_hex(TOKEN_BYTES))
    try:
        await trace.open(**wanted)
    except BaseException:
        await trace.leave()
        raise
    try:
        yield trace
    finally:
        await trace.stop()
