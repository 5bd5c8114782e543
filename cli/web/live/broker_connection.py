"""The connection to the broker: made when it is needed, made again when it is lost."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import nats.errors

from cli.live.broker_client import LiveBroker, NoLiveBroker, TooLarge, open_broker
from cli.logsource.source import Source, source_on
from cli.logsource.source_flags import SourceFlags
from eventstore.errors import NatsUnavailable
from eventstore.nats import check_jetstream
from protocol.errors import FoldmqError

_AGAIN_SECONDS = 1.0
"""How long a broker that was not there is not looked for."""


class Away(FoldmqError):  # noqa: N818 - named for the condition, as in eventstore.errors
    """The broker is not to be reached now; the text says why."""

    exit_code = 69


@dataclass(slots=True)
class _Open:
    stack: contextlib.AsyncExitStack
    broker: LiveBroker
    source: Source | None = None


class Link:
    """One connection for all pages. ``epoch`` counts how often it was made."""

    def __init__(self, flags: SourceFlags) -> None:
        self.epoch = 0
        self.node = ""
        self._flags = flags
        self._open: _Open | None = None
        self._lock = asyncio.Lock()
        self._failed: tuple[float, str] | None = None

    async def ask(self, endpoint: str, /, **request: Any) -> dict[str, Any]:
        """Return the broker's answer; raises Away, and Refused with its sentence."""
        held = await self._connected()
        try:
            return await held.broker.ask(endpoint, **request)
        except NoLiveBroker as error:
            await self._drop(held, str(error))
            raise Away(str(error)) from None

    async def ask_less(
        self,
        endpoint: str,
        counts: Sequence[int],
        request: Callable[[int], dict[str, Any]],
    ) -> tuple[dict[str, Any], int]:
        """Ask for so many things at once, for fewer where their names are too long.

        ``request`` makes the question for one of the ``counts``, which get smaller. Returns the
        answer, and which of them fitted. Raises as ``ask`` does.
        """
        for count in counts[:-1]:
            with contextlib.suppress(TooLarge):
                return await self.ask(endpoint, **request(count)), count
        return await self.ask(endpoint, **request(counts[-1])), counts[-1]

    @contextlib.asynccontextmanager
    async def log(self) -> AsyncIterator[Source]:
        """Give the log as it is now.

        Raises Away when NATS does not answer, here or while it is read, and the errors of
        ``cli.logsource.source``.
        """
        held = await self._connected()
        try:
            held.source = await self._as_of_now(held)
            yield held.source
        except NatsUnavailable as error:
            await self._drop(held, str(error))
            raise Away(str(error)) from None
        except nats.errors.Error:  # the connection ended under the reader
            raise Away("the connection to NATS was lost") from None

    async def close(self) -> None:
        """End the connection."""
        if self._open is not None:
            await self._drop(self._open, "the page ends")

    async def _as_of_now(self, held: _Open) -> Source:
        client, source = held.broker.client, held.source
        if source is not None:
            first, last = await source.bounds()
            if first == source.first:
                return replace(source, last=last)
        else:
            await check_jetstream(client)
        stream = f"FOLDMQ_LOG_{held.broker.node}"
        return await source_on(client, stream, held.broker.where)

    async def _connected(self) -> _Open:
        async with self._lock:
            if self._open is not None and not self._open.broker.client.is_connected:
                # It would go on dialing where a broker that is started again may not be any more.
                await self._drop(self._open, "the connection to NATS was lost")
            if self._open is None:
                if self._failed is not None and time.monotonic() < self._failed[0]:
                    raise Away(self._failed[1])
                self._open = await self._connect()
                self.epoch += 1
                self.node = self._open.broker.node
                self._failed = None
            return self._open

    async def _connect(self) -> _Open:
        async with contextlib.AsyncExitStack() as stack:
            try:
                broker = await stack.enter_async_context(open_broker(self._flags))
            except FoldmqError as error:
                self._fails(str(error))
                raise Away(str(error)) from None
            return _Open(stack.pop_all(), broker)
        raise AssertionError  # the stack passes every exception on

    async def _drop(self, held: _Open, why: str) -> None:
        if self._open is held:
            self._open = None
            self._fails(why)
            await held.stack.aclose()

    def _fails(self, why: str) -> None:
        self._failed = (time.monotonic() + _AGAIN_SECONDS, why)
